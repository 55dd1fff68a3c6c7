"""Lets only answers through that are the requested work. In: answers as they end. Out: nothing, or an Untrusted error.

Pure.
"""

from dataclasses import dataclass, field

from loadtest.client.errors import Untrusted
from loadtest.client.prompts import PromptId, Work
from loadtest.client.streamed_answer import StreamedAnswer


@dataclass(slots=True)
class AnswerGate:
    """Checks every answer. Remembers prompt tokens by prompt, to compare one backend's count with the other's.

    `is_exact`: answers must have as many tokens as requested. `answers`: how many were let through.
    """

    is_exact: bool = True
    answers: int = 0
    _prompts: dict[PromptId, tuple[str, int]] = field(default_factory=dict)

    def check(self, answer: StreamedAnswer, work: Work) -> None:
        """Checks one answer. Raises Untrusted, with what an operator can do about it."""
        _check_success(answer, work)
        if work.backend:
            _check_route(answer, work)
        if self.is_exact:
            _check_length(answer, work)
        self._check_prompt(answer, work)
        self.answers += 1

    def _check_prompt(self, answer: StreamedAnswer, work: Work) -> None:
        count = answer.prompt_tokens or 0
        other, expected = self._prompts.pop(work.prompt, (work.backend, count))
        if count != expected:
            raise Untrusted(
                f"UNEQUAL WORK: the same prompt was {count} tokens on {work.backend} and {expected} on {other}; "
                "both must serve the same tokenizer and chat template."
            )
        if other == work.backend:
            self._prompts[work.prompt] = (work.backend, count)


def _check_success(answer: StreamedAnswer, work: Work) -> None:
    if answer.error:
        raise Untrusted(f"REQUEST FAILED: {work.server} answered an error: {answer.error}")
    if answer.finish_reason is None:
        raise Untrusted(f"REQUEST FAILED: {work.server} ended its stream without a finish_reason")
    if answer.completion_tokens is None or answer.prompt_tokens is None:
        raise Untrusted(
            f"NO USAGE: {work.server} sent no token counts although include_usage was asked; none are estimated."
        )


def _check_route(answer: StreamedAnswer, work: Work) -> None:
    if answer.backend != work.backend:
        served = answer.backend or "an unnamed backend (no x-crossover-backend header)"
        raise Untrusted(f"MISROUTED: a request pinned to {work.backend} was served by {served}.")


def _check_length(answer: StreamedAnswer, work: Work) -> None:
    if answer.completion_tokens != work.tokens or answer.finish_reason != "length":
        raise Untrusted(
            f"UNEQUAL WORK: {work.server} returned {answer.completion_tokens} of {work.tokens} tokens "
            f"(finish={answer.finish_reason}); check ignore_eos/min_tokens support in this version."
        )
