"""What the adapters of foreign engines tell: tokens in the reference engine's form, and the engine's load.

In: ids, scores, reasons as the engine names them. Out: TokenOutputs. Knows no engine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engines.reference.engine import TokenOutput
from engines.reference.generation import FinishReason
from engines.reference.scores import Score

UNTOLD = -1  # stands for an end token that the engine kept to itself; who answers in tensors drops it in any case
FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}


class UnusableAnswer(Exception):
    """The engine ended it in a way that no answer ends in; the message is what the client reads."""


@dataclass(frozen=True, slots=True)
class Load:
    """An EngineLoad."""

    running: int
    waiting: int
    capacity: int
    kv_tokens_used: int
    kv_tokens_total: int
    tokens_per_block: int
    steps: int


def finish_reason(reason: str | None) -> FinishReason | None:
    """None while it goes on. UnusableAnswer for an engine's further reasons: aborted, timed out, in error."""
    if reason is None or reason in FINISH_REASONS:
        return None if reason is None else FINISH_REASONS[reason]
    raise UnusableAnswer(f"The engine ended the answer: {reason}")


class Progress:
    """How far one answer has been told. `ends`: the tokens that may end it, which the engine may or may not return."""

    def __init__(self, ends: Collection[int]) -> None:
        self.told = 0
        self._ends = ends

    def advance(
        self, token_ids: Sequence[int], scores: Sequence[Score] | None, reason: FinishReason | None
    ) -> list[TokenOutput]:
        """The next tokens. An ended answer has its reason on the last, which is an end token if that ended it."""
        outputs = [
            output(token_id, self.told + place + 1, None if scores is None else scores[place])
            for place, token_id in enumerate(token_ids)
        ]
        if reason is not None:
            self._end(outputs, reason)
        self.told += len(outputs)
        return outputs

    def _end(self, outputs: list[TokenOutput], reason: FinishReason) -> None:
        if not outputs or (reason == "stop" and outputs[-1].token_id not in self._ends):
            outputs.append(output(UNTOLD, self.told + len(outputs) + 1, None)._replace(finish_reason="stop"))
        else:
            outputs[-1] = outputs[-1]._replace(finish_reason=reason)


def output(token_id: int, position: int, score: Score | None) -> TokenOutput:
    """The receiver knows whose it is."""
    return TokenOutput("", token_id, score, None, position)
