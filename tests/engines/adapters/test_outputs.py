"""An engine's deltas as tokens, with what ends an answer: a table."""

import pytest

from engines.adapters.outputs import WITHHELD, Progress, UnusableAnswer, finish_reason
from engines.reference.generation import FinishReason

EOS = 2


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([([5], None), ([6, 7], "length")], [(5, None), (6, None), (7, "length")]),
        ([([5], None), ([6, EOS], "stop")], [(5, None), (6, None), (EOS, "stop")]),
        ([([5], None), ([6], "stop")], [(5, None), (6, None), (WITHHELD, "stop")]),
        ([([5], None), ([], "stop")], [(5, None), (WITHHELD, "stop")]),
        ([([5], None), ([], "length")], [(5, None), (WITHHELD, "stop")]),  # its end, and no further token to carry it
    ],
)
def test_answer_ends_with_its_reason_whatever_its_engine_returns_of_the_end_token(
    deltas: list[tuple[list[int], FinishReason | None]], expected: list[tuple[int, FinishReason | None]]
) -> None:
    progress = Progress((EOS,))
    outputs = [output for ids, reason in deltas for output in progress.advance(ids, None, reason)]
    assert [(output.token_id, output.finish_reason) for output in outputs] == expected
    assert [output.position for output in outputs] == list(range(1, len(expected) + 1))


@pytest.mark.parametrize("reason", ["abort", "cancelled", "timeout", "error"])
def test_end_that_is_none_of_an_answer_is_an_error(reason: str) -> None:
    with pytest.raises(UnusableAnswer, match=f"The engine ended the answer: {reason}"):
        finish_reason(reason)
