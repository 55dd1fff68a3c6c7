"""Answers of other engines in the reference engine's form.

In: ids, scores and reasons as an engine names them. Out: TokenOutputs. Knows no engine.
"""

from collections.abc import Collection, Mapping, Sequence

from engines.reference.engine import TokenOutput
from engines.reference.generation import FinishReason
from engines.reference.scores import Score

WITHHELD = -1  # in place of an end token that the engine does not return; TensorAnswer drops end tokens anyway
FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}


class UnusableAnswer(Exception):
    """The engine ended an answer in a way that has no finish reason; the message is for the client."""


def finish_reason(reason: str | None) -> FinishReason | None:
    """Returns None while the answer goes on. Raises UnusableAnswer for other reasons: aborted, timed out, in error."""
    if reason is None or reason in FINISH_REASONS:
        return None if reason is None else FINISH_REASONS[reason]
    raise UnusableAnswer(f"The engine ended the answer: {reason}")


class Progress:
    """How many tokens of an answer were delivered. `ends`: end tokens, which an engine may return or withhold."""

    def __init__(self, ends: Collection[int]) -> None:
        self.delivered = 0
        self._ends = ends

    def advance(
        self, token_ids: Sequence[int], scores: Sequence[Score] | None, reason: FinishReason | None
    ) -> list[TokenOutput]:
        """Returns the next tokens. An ended answer's last has its finish reason; it is an end token if one ended it."""
        outputs = [
            output(token_id, self.delivered + place + 1, None if scores is None else scores[place])
            for place, token_id in enumerate(token_ids)
        ]
        if reason is not None:
            self._end(outputs, reason)
        self.delivered += len(outputs)
        return outputs

    def _end(self, outputs: list[TokenOutput], reason: FinishReason) -> None:
        if not outputs or (reason == "stop" and outputs[-1].token_id not in self._ends):
            outputs.append(output(WITHHELD, self.delivered + len(outputs) + 1, None)._replace(finish_reason="stop"))
        else:
            outputs[-1] = outputs[-1]._replace(finish_reason=reason)


def output(token_id: int, position: int, score: Score | None) -> TokenOutput:
    """Makes a TokenOutput without a request id: a receiver serves one request."""
    return TokenOutput("", token_id, score, None, position)
