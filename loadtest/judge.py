"""Whether an answer is the work that was asked for. In: answers as they end. Out: nothing, or the run's end. Pure."""

from dataclasses import dataclass, field

from loadtest.answer import Answer
from loadtest.errors import Misrouted, RequestFailed, UnequalWork
from loadtest.work import Asked, Place


@dataclass(slots=True)
class Judge:
    """Every answer passes here. Remembers prompt tokens by place, to hold one backend's against the other's.

    `is_exact`: answers have as many tokens as asked for.
    """

    is_exact: bool = True
    answers: int = 0
    tokens: int = 0
    _prompts: dict[Place, tuple[str, int]] = field(default_factory=dict)

    def accept(self, answer: Answer, asked: Asked) -> None:
        """Raises Untrusted, with what an operator can do about it."""
        self._check_success(answer, asked)
        if asked.backend:
            _check_route(answer, asked)
        if self.is_exact:
            _check_work(answer, asked)
        self._check_prompt(answer, asked)
        self.answers += 1
        self.tokens += asked.tokens

    def _check_success(self, answer: Answer, asked: Asked) -> None:
        if answer.error:
            raise RequestFailed(f"REQUEST FAILED: {asked.server} answered an error: {answer.error}")
        if answer.finish_reason is None:
            raise RequestFailed(f"REQUEST FAILED: {asked.server} ended its stream without a finish_reason")
        if answer.completion_tokens is None or answer.prompt_tokens is None:
            raise RequestFailed(
                f"NO USAGE: {asked.server} sent no token counts although include_usage was asked; none are estimated."
            )

    def _check_prompt(self, answer: Answer, asked: Asked) -> None:
        count = answer.prompt_tokens or 0
        other, expected = self._prompts.pop(asked.place, (asked.backend, count))
        if count != expected:
            raise UnequalWork(
                f"UNEQUAL WORK: the same prompt was {count} tokens on {asked.backend} and {expected} on {other}; "
                "both must serve the same tokenizer and chat template."
            )
        if other == asked.backend:
            self._prompts[asked.place] = (asked.backend, count)


def _check_route(answer: Answer, asked: Asked) -> None:
    if answer.backend != asked.backend:
        served = answer.backend or "an unnamed backend (no x-crossover-backend header)"
        raise Misrouted(f"MISROUTED: a request pinned to {asked.backend} was served by {served}.")


def _check_work(answer: Answer, asked: Asked) -> None:
    if answer.completion_tokens != asked.tokens or answer.finish_reason != "length":
        raise UnequalWork(
            f"UNEQUAL WORK: {asked.server} returned {answer.completion_tokens} of {asked.tokens} tokens "
            f"(finish={answer.finish_reason}); check ignore_eos/min_tokens support in this version."
        )
