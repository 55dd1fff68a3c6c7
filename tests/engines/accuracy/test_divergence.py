"""Agreement of token ids, and bounds of divergences against the divergences of whole distributions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.accuracy.divergence import Agreement, Divergence, ScoredToken, count_equal, measure_divergence


@pytest.mark.parametrize(
    ("a", "b", "expected", "first"),
    [
        ([1, 2, 3], [1, 2, 3], Agreement(3, 3, 3), None),
        ([1, 2, 3], [1, 9, 3], Agreement(3, 2, 1), 1),
        ([1, 2], [1, 2, 3, 4], Agreement(4, 2, 2), 2),
        ([5], [6, 7], Agreement(2, 0, 0), 0),
    ],
)
def test_answers_agree_place_by_place_and_up_to_the_first_that_differs(
    a: list[int], b: list[int], expected: Agreement, first: int | None
) -> None:
    assert count_equal(a, b) == expected == count_equal(b, a)
    assert expected.first_difference == first


def row(probabilities: dict[str, float]) -> ScoredToken:
    return ScoredToken("x", 0.0, {token: math.log(p) for token, p in probabilities.items() if p > 0})


def test_the_same_row_diverges_by_no_more_than_what_it_leaves_out() -> None:
    same = row({"a": 0.7, "b": 0.2})
    found = measure_divergence([same], [same])
    assert found.tokens == 1
    assert (found.kl, found.tv_low, found.tv_high, found.unseen) == pytest.approx((0, 0, 0.1, 0.1))


def test_whole_distributions_give_the_divergence_itself() -> None:
    found = measure_divergence([row({"a": 0.5, "b": 0.5})], [row({"a": 0.75, "b": 0.25})])
    assert found.kl == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25), abs=1e-5)
    assert (found.tv_low, found.tv_high) == pytest.approx((0.25, 0.25), abs=1e-5)


def test_places_add_up() -> None:
    p, q = row({"a": 0.9, "b": 0.1}), row({"a": 0.6, "b": 0.4})
    one, two = measure_divergence([p], [q]), measure_divergence([p, p], [q, q])
    assert (two.tokens, two.kl, two.tv_high) == pytest.approx((2, 2 * one.kl, 2 * one.tv_high))
    assert measure_divergence([], []) == Divergence(0, 0.0, 0.0, 0.0, 0.0)


def test_halves_of_characters_are_not_taken_for_the_same_token() -> None:
    p, q = row({"\ufffd": 0.9, "a": 0.1}), row({"\ufffd": 0.1, "a": 0.1, "b": 0.8})
    assert measure_divergence([p], [q]).kl == pytest.approx(0, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([0.1, 1.0, 10.0]))
def test_the_likeliest_few_bound_the_divergence_of_all(seed: int, top: int, concentration: float) -> None:
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet([concentration] * 12) + 1e-9 for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    rows = [row({str(place): side[place] for place in np.argsort(side)[-top:]}) for side in (p, q)]
    found = measure_divergence(rows[:1], rows[1:])
    distance = np.abs(p - q).sum() / 2
    slack = 3e-6  # of masses below MIN_MASS
    assert -slack <= found.kl <= (p * np.log(p / q)).sum() + slack
    assert found.tv_low - slack <= distance <= found.tv_high + slack
