"""The difference of two runs: by hand, and how often its interval is right over many simulated runs."""

import math
import random
from statistics import variance

import pytest

from loadtest.decide.contrast import Samples, contrast_samples
from loadtest.decide.estimate import quantile

LEVELS = (1, 8, 32, 64, 128)


def sample(chance: random.Random, sd: float, shift: float = 0.0, repeats: int = 3) -> Samples:
    return {level: [shift + chance.gauss(0, sd) for _ in range(repeats)] for level in LEVELS}


def test_one_level_alone_is_the_two_sample_t_test() -> None:
    first, second = [1.0, 1.1, 1.3], [1.5, 1.4]
    (found,) = contrast_samples({4: first}, {4: second})
    pooled = (2 * variance(first) + variance(second)) / 3
    error = math.sqrt(pooled * (1 / 3 + 1 / 2))
    assert (found.difference, found.error, found.dof) == pytest.approx((1.45 - 3.4 / 3, error, 3))
    reach = quantile(0.05, 3) * error
    assert found.find_ends(0.05) == pytest.approx((found.difference - reach, found.difference + reach))


def test_levels_that_scatter_alike_share_their_variance_and_have_a_mean() -> None:
    first, second = ({level: [at, at + 0.02] for level in LEVELS} for at in (0.0, 0.1))
    *levels, mean = contrast_samples(first, second)
    assert [each.level for each in levels] == list(LEVELS)
    assert {round(each.dof) for each in levels} == {2 * len(LEVELS)}
    assert mean.level is None
    assert mean.difference == pytest.approx(0.1)
    assert mean.error == pytest.approx((levels[0].error or 0) / math.sqrt(len(LEVELS)))


def test_only_common_levels_are_compared() -> None:
    assert [each.level for each in contrast_samples({1: [0, 0.1], 2: [0, 0.1]}, {2: [0, 0.1], 4: [0]})] == [2]
    assert contrast_samples({1: [0, 0.1]}, {2: [0, 0.1]}) == []


def test_without_a_repeat_there_is_a_difference_but_no_interval() -> None:
    found = contrast_samples({1: [0.0], 2: [0.0]}, {1: [0.1], 2: [0.3]})
    assert [each.difference for each in found] == pytest.approx([0.1, 0.3, 0.2])
    assert [each.find_ends(0.05) for each in found] == [None, None, None]


@pytest.mark.parametrize("shift", [0.0, 0.03])
def test_an_interval_holds_the_truth_as_often_as_it_says(shift: float) -> None:
    """2,000 comparisons of five levels: 0.95 within three standard errors, and a little more where levels are few."""
    chance, runs = random.Random(1), 2000
    drawn = [contrast_samples(sample(chance, 0.01), sample(chance, 0.01, shift)) for _ in range(runs)]
    for place, most in ((0, 0.97), (-1, 0.98)):  # one level, and the mean of all
        ends = [found[place].find_ends(0.05) or (1.0, 0.0) for found in drawn]
        assert 0.93 < sum(low <= shift <= high for low, high in ends) / runs < most


def test_a_loud_level_does_not_blur_the_others() -> None:
    chance = random.Random(2)
    loud = {**sample(chance, 0.001), 128: [0.0, 0.5, -0.5]}
    found = {each.level: each for each in contrast_samples(loud, sample(chance, 0.001))}
    quiet, noisy = found[1].error or 9, found[128].error or 0
    assert noisy > 50 * quiet
    assert quiet < 0.003
