"""How much is left of an answer, by how long recent ones were."""

import pytest
from gateway.metrics.lengths import HEAVY, NO_ANSWERS, AnswerLengths


def lengths(*tokens: int) -> AnswerLengths:
    answers = AnswerLengths()
    for count in tokens:
        answers.add(10, count)
    return answers


def test_before_any_answer_has_finished_max_tokens_is_expected() -> None:
    assert NO_ANSWERS.left(5, 100) == 100
    assert AnswerLengths().table().left(0, 7) == 7


def test_the_mean_is_of_recent_answers() -> None:
    table = lengths(*[100] * 50, *[400] * 1000).table()
    assert table.tokens / table.weight == pytest.approx(400, rel=0.01)
    assert table.prompt_tokens / table.weight == pytest.approx(10)


def test_what_is_left_is_of_the_answers_that_were_longer() -> None:
    """Half of the answers have 10 tokens and half 1000: one that has 100 already is one of the long ones."""
    table = lengths(*[10, 1000] * 200).table()
    assert table.left(0, 10_000) == pytest.approx(505, rel=0.02)
    assert table.left(100, 10_000) == pytest.approx(900, rel=0.02)
    assert table.left(100, 50) == 50  # max_tokens caps it
    assert table.left(1000, 300) == 300  # longer than all: only max_tokens is known
    assert table.left(2**40, 300) == 300


def test_a_million_answers_leave_finite_weights() -> None:
    answers = lengths(*[64] * 5000)
    assert answers._next <= HEAVY
    table = answers.table()
    assert table.tokens / table.weight == pytest.approx(64)
