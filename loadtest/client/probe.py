"""One request that is not measured: checks that the answer is the requested work, and whether every event has usage."""

from dataclasses import replace

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.prompts import Work
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
