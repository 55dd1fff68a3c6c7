"""Requests that are not measured: check that an answer is the requested work, whether every event has usage, and how
many tokens prompts have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.prompts import PromptId, Work
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer


async def probe(sender: Sender, gate: AnswerGate, work: Work) -> tuple[Sender, StreamedAnswer]:
    """Returns the sender to use from now on, and the answer. Raises MeasurementError if it is not the work."""
    answer = StreamedAnswer()
    connection = await sender.connect()
    try:
        await sender.send(connection, work, answer)
    finally:
        connection.abort()
    # continuous_usage_stats is vLLM's extension; an endpoint may refuse it or ignore it.
    if sender.wants_counts and answer.status == 400:
        return await probe(replace(sender, wants_counts=False), gate, work)
    gate.check(answer, work)
    return replace(sender, wants_counts=sender.wants_counts and answer.is_counted), answer


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """A prompt of so many `words` has so many `tokens`, and with each word more `tokens_per_word` more."""

    words: int
    tokens: int
    tokens_per_word: float

    def count_words(self, tokens: int) -> int:
        return max(self.words + round((tokens - self.tokens) / self.tokens_per_word), 1)


async def probe_lengths(
    sender: Sender, gate: AnswerGate, backends: Sequence[str], tokens: int
) -> tuple[Sender, PromptLengths]:
    """Sends each of two backends a prompt, the second one twice as long. Returns the sender to use from now on too."""
    counts = []
    for number, backend in enumerate(backends):
        work = Work(backend, PromptId(-1, 0, number), tokens, (number + 1) * sender.prompt_words)
        sender, answer = await probe(sender, gate, work)
        counts.append(answer.prompt_tokens or 0)
    usual, twice = counts
    return sender, PromptLengths(sender.prompt_words, usual, max(twice - usual, 1) / sender.prompt_words)
