"""Log-probabilities and ranks against the direct formula."""

import numpy as np
import pytest

from engines.reference.scores import score

ROWS = 3 * np.random.default_rng(5).standard_normal((4, 50), np.float32)


def test_a_score_is_the_log_of_the_softmax_with_its_rank_and_the_likeliest() -> None:
    logprobs = np.log(np.exp(ROWS.astype(float)) / np.exp(ROWS.astype(float)).sum(axis=1, keepdims=True))
    for row, (one, token_id) in enumerate(zip(score(ROWS, [3, 9, 3, 49], [5] * 4), [3, 9, 3, 49], strict=True)):
        order = np.argsort(-logprobs[row])
        assert (one.token_id, one.rank) == (token_id, order.tolist().index(token_id) + 1)
        assert one.logprob == pytest.approx(logprobs[row, token_id], abs=1e-5)
        assert [likely for likely, _ in one.top] == order[:5].tolist()
        assert [value for _, value in one.top] == pytest.approx(logprobs[row, order[:5]].tolist(), abs=1e-5)


def test_more_than_there_are_is_all_of_them() -> None:
    for count in (20, -1):
        (one,) = score(ROWS[:1, :6], [0], [count])
        assert sorted(token_id for token_id, _ in one.top) == list(range(6))


def test_of_equals_the_lowest_id_is_first_and_all_share_the_worst_rank() -> None:
    row = np.array([[1, 5, 5, 5, 0]], np.float32)
    (one,) = score(row, [2], [2])
    assert [token_id for token_id, _ in one.top] == [1, 2]
    assert one.rank == 3  # vLLM counts the tokens that are at least as likely


def test_masked_tokens_have_no_share() -> None:
    row = np.array([[2, -np.inf, 2, -np.inf]], np.float32)
    (one,) = score(row, [0], [4])
    assert one.logprob == pytest.approx(np.log(0.5))
    assert [value for _, value in one.top][2:] == [-np.inf, -np.inf]
