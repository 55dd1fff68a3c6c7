"""Intervals against published values, against one another, and against the truth of simulated items."""

import math

import numpy as np
import pytest
from scipy import stats

from engines.accuracy.intervals import Interval, mcnemar, paired_difference, ratio_of_sums

Z = float(stats.norm.ppf(0.975))


def test_tango_and_exact_mcnemar_of_a_published_table() -> None:
    """Bentur et al. (2009) as analysed by Fagerland, Lydersen and Laake, Statistics in Medicine 33 (2014), 2850-2875:
    21 children, 1 changed one way and 7 the other: p = 0.070, Tango's interval (-0.517, -0.026)."""
    interval = paired_difference(1, 7, 21, 0.95)
    assert mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert interval.point == pytest.approx(-6 / 21)
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(("lost", "gained", "p"), [(0, 0, 1.0), (5, 0, 2 / 32), (0, 6, 2 / 64), (3, 3, 1.0)])
def test_mcnemar_is_a_sign_test_of_what_changed(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost, gained) == pytest.approx(p)


@pytest.mark.parametrize("items", [1, 20, 500])
def test_items_of_which_none_changed_leave_room_for_a_change(items: int) -> None:
    interval = paired_difference(0, 0, items, 0.95)
    width = Z**2 / (items + Z**2)
    assert (interval.low, interval.point, interval.high) == pytest.approx((-width, 0.0, width))


@pytest.mark.parametrize(("lost", "gained", "items"), [(7, 2, 30), (0, 4, 50), (12, 12, 24), (5, 0, 5)])
def test_an_exchange_of_both_turns_the_interval_around(lost: int, gained: int, items: int) -> None:
    one, other = paired_difference(lost, gained, items, 0.9), paired_difference(gained, lost, items, 0.9)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)
    assert -1 <= one.low <= one.point <= one.high <= 1


@pytest.mark.parametrize(("lost", "gained"), [(10, 2), (9, 3), (30, 14), (14, 8)])
def test_zero_is_outside_just_where_the_test_that_it_inverts_rejects(lost: int, gained: int) -> None:
    chi = (lost - gained) / math.sqrt(lost + gained)
    assert (paired_difference(lost, gained, 100, 0.95).low > 0) == (chi > Z)


@pytest.mark.parametrize(
    ("lost", "gained", "items"), [(0.01, 0.01, 100), (0.06, 0.02, 60), (0.15, 0.15, 40), (0.3, 0.05, 50)]
)
def test_the_difference_of_shares_is_held_as_often_as_promised(lost: float, gained: float, items: int) -> None:
    """Exactly, by adding up the chances of all tables: Tango's interval may fall short of 95 % by a point or so."""
    held = 0.0
    for b in range(items + 1):
        for c in range(items + 1 - b):
            chance = float(stats.multinomial.pmf([b, c, items - b - c], items, [lost, gained, 1 - lost - gained]))
            if chance > 1e-7:
                interval = paired_difference(b, c, items, 0.95)
                held += chance * (interval.low <= lost - gained <= interval.high)
    assert 0.935 < held < 1


def test_a_ratio_of_sums_is_held_about_as_often_as_promised() -> None:
    """Nats per token of 80 answers, skewed as surprisals are; simulated 150 times, so within some 6 points of 95 %."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(150):
        tokens = rng.integers(5, 40, 80).astype(float)
        nats = rng.gamma(1.0, 0.01, 80) * tokens
        interval = ratio_of_sums(list(nats), list(tokens), 0.95)
        held += interval.low <= 0.01 <= interval.high
    assert 0.88 < held / 150 < 1


def test_items_that_are_all_alike_have_an_interval_of_no_width() -> None:
    assert ratio_of_sums([0.0] * 9, [4.0, 7.0, 2.0] * 3, 0.95) == Interval(0.0, 0.0, 0.0, 0.95)
    assert ratio_of_sums([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 0.95).low == 0.5


@pytest.mark.parametrize(("above", "below"), [([1.0], [1.0]), ([0.0, 0.0], [0.0, 0.0])])
def test_too_little_for_an_interval_is_an_error(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match="two items"):
        ratio_of_sums(above, below, 0.95)
