"""Log-probabilities and ranks against the direct formula."""

import numpy as np
import pytest

from engines.reference.scores import score

ROWS = 3 * np.random.default_rng(5).standard_normal((4, 50), np.float32)


def test_a_score_is_the_log_of_the_softmax_with_its_rank_and_the_likeliest() -> None:
    logprobs = np.log(np.exp(ROWS.astype(float)) / np.exp(ROWS.astype(float)).sum(axis=1, keepdims=True))
    for row, (told, token_id) in enumerate(zip(score(ROWS, [3, 9, 3, 49], [5] * 4), [3, 9, 3, 49], strict=True)):
        order = np.argsort(-logprobs[row])
        assert (told.token_id, told.rank) == (token_id, order.tolist().index(token_id) + 1)
        assert told.logprob == pytest.approx(logprobs[row, token_id], abs=1e-5)
        assert [likely for likely, _ in told.top] == order[:5].tolist()
        assert [value for _, value in told.top] == pytest.approx(logprobs[row, order[:5]].tolist(), abs=1e-5)


def test_more_than_there_are_is_all_of_them() -> None:
    for count in (20, -1):
        (told,) = score(ROWS[:1, :6], [0], [count])
        assert sorted(token_id for token_id, _ in told.top) == list(range(6))


def test_of_equals_the_lowest_id_is_first_and_all_share_the_worst_rank() -> None:
    row = np.array([[1, 5, 5, 5, 0]], np.float32)
    (told,) = score(row, [2], [2])
    assert [token_id for token_id, _ in told.top] == [1, 2]
    assert told.rank == 3  # vLLM counts the tokens that are at least as likely


def test_masked_tokens_have_no_share() -> None:
    row = np.array([[2, -np.inf, 2, -np.inf]], np.float32)
    (told,) = score(row, [0], [4])
    assert told.logprob == pytest.approx(np.log(0.5))
    assert [value for _, value in told.top][2:] == [-np.inf, -np.inf]
