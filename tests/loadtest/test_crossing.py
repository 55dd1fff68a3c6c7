import math
import random
from collections.abc import Mapping

import pytest

from loadtest.crossing import Crossover, Point, Threshold, Verdict, find_crossover, flanks, set_threshold
from loadtest.refine import next_level

BAND = 0.03
SEED_FP8 = {1: 1.145, 4: 1.054, 16: 1.017, 32: 1.055, 64: 0.974, 128: 0.616}


def find(ratios: Mapping[int, float]) -> Crossover:
    return find_crossover([Point(level, math.log(ratio)) for level, ratio in ratios.items()], BAND)


def test_measured_fp8_pair_crosses_where_its_lines_do() -> None:
    found = find(SEED_FP8)
    assert found.verdict is Verdict.CROSSING
    assert found.point == pytest.approx(50.7, rel=0.01)
    assert found.tie_zone == pytest.approx((39.4, 64.3), rel=0.01)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ({1: 1.2, 2: 1.1, 4: 1.05}, Verdict.ALWAYS_LOW),
        ({1: 1.2, 2: 1.1, 4: 0.99}, Verdict.ALWAYS_LOW),
        ({1: 1.02, 2: 0.99, 4: 0.8}, Verdict.ALWAYS_HIGH),
        ({1: 0.9, 2: 0.8, 4: 0.7}, Verdict.ALWAYS_HIGH),
        ({1: 1.02, 2: 0.98, 4: 1.01}, Verdict.TIE),
        ({1: 1.2, 2: 0.8, 4: 1.2}, Verdict.SEVERAL),
        ({1: 0.8, 2: 0.9, 4: 1.2}, Verdict.REVERSED),
        ({1: 1.2, 8: 0.8}, Verdict.CROSSING),
        ({1: 1.3}, Verdict.ALWAYS_LOW),
    ],
)
def test_verdict_goes_by_levels_that_are_clearly_apart(ratios: dict[int, float], verdict: Verdict) -> None:
    assert find(ratios).verdict is verdict


def test_two_levels_cross_at_their_lines_zero() -> None:
    gain = math.log(1.2)
    found = find_crossover([Point(8, gain), Point(32, -gain)], BAND)
    assert found.point == pytest.approx(16.0)


@pytest.mark.parametrize("flipped", [4, 8, 16])
def test_a_flip_within_the_band_at_a_low_level_is_not_the_crossing(flipped: int) -> None:
    ratios = {1: 1.14, 2: 1.08, 4: 1.05, 8: 1.034, 16: 1.02, 32: 1.05, 64: 0.95, 128: 0.6} | {flipped: 0.98}
    found = find(ratios)
    assert found.verdict is Verdict.CROSSING
    assert found.point is not None
    assert 32 < found.point < 64


def test_flips_between_the_winners_are_smoothed_to_one_crossing() -> None:
    found = find({8: 1.1, 16: 0.985, 32: 1.015, 64: 0.9})
    assert found.verdict is Verdict.CROSSING
    assert found.point is not None
    assert found.tie_zone is not None
    assert 8 < found.tie_zone[0] <= found.point <= found.tie_zone[1] < 64


def test_order_of_points_does_not_matter() -> None:
    assert find(dict(reversed(SEED_FP8.items()))) == find(SEED_FP8)


def test_reversed_pair_crosses_at_the_same_point() -> None:
    mirrored = find({level: 1 / ratio for level, ratio in SEED_FP8.items()})
    assert mirrored.verdict is Verdict.REVERSED
    assert mirrored.point == pytest.approx(find(SEED_FP8).point)


def test_levels_far_apart_do_not_upset_the_fit() -> None:
    assert find({1: 1.5, 2**30: 0.5}).verdict is Verdict.CROSSING


@pytest.mark.parametrize(
    ("point", "up", "down"),
    [(50.7, 59, 43), (40.0, 46, 34), (10.0, 12, 8), (3.0, 4, 2), (1.5, 2, 1), (1.0, 2, 1)],
)
def test_threshold_lies_beside_the_crossing_and_is_reachable(point: float, up: int, down: int) -> None:
    assert set_threshold(point, 0.15) == Threshold(up, down)


def test_flanks_are_the_measured_levels_beside_the_point() -> None:
    assert flanks(Crossover(Verdict.CROSSING, 50.0), [1, 32, 64, 128]) == (32, 64)
    assert flanks(Crossover(Verdict.CROSSING, 32.0), [1, 32, 64, 128]) == (32, 64)


# Refinement


def ratios_to_points(ratios: Mapping[int, float], pairs: Mapping[int, int]) -> list[Point]:
    return [Point(level, math.log(ratio), pairs.get(level, 1)) for level, ratio in ratios.items()]


@pytest.mark.parametrize(
    ("ratios", "pairs", "level"),
    [
        ({1: 1.2, 32: 1.1, 64: 0.9}, {}, 45),
        ({32: 1.1, 45: 1.05, 64: 0.9}, {}, 54),
        ({32: 1.1, 54: 1.04, 64: 0.9}, {54: 2}, 64),
        ({3: 1.1, 4: 0.9}, {3: 2}, 4),
        ({1: 1.1, 2: 0.9}, {}, 1),
        ({1: 1.2, 2: 0.9, 4: 0.94, 8: 0.8, 16: 1.2}, {}, 8),
        ({32: 1.05, 45: 1.15, 54: 0.99, 64: 0.95}, {}, 45),
        ({32: 1.05, 45: 1.15, 54: 0.99, 64: 0.95}, {45: 3}, 54),
        ({2: 1.1, 4: 0.7, 8: 1.1, 16: 0.9}, {}, 4),
        ({2: 1.1, 4: 0.94, 8: 0.95, 16: 1.05, 32: 1.1}, {2: 2, 32: 2}, 16),
    ],
)
def test_next_level_is_one_that_sticks_out_or_lies_at_the_crossing(
    ratios: dict[int, float], pairs: dict[int, int], level: int
) -> None:
    assert next_level(ratios_to_points(ratios, pairs), BAND) == level


@pytest.mark.parametrize("ratios", [{1: 1.2, 2: 1.1}, {1: 0.8, 2: 0.9}, {1: 1.0, 2: 1.0}])
def test_nothing_is_refined_where_one_backend_wins_or_none_does(ratios: dict[int, float]) -> None:
    assert next_level(ratios_to_points(ratios, {}), BAND) is None


def true_ratio(level: float) -> float:
    """The measured pair, joined by straight lines over log2."""
    x, known = math.log2(level), sorted(SEED_FP8)
    right = next(index for index, other in enumerate(known) if other >= level)
    left = max(right - 1, 0)
    x0, x1 = math.log2(known[left]), math.log2(known[right])
    y0, y1 = math.log(SEED_FP8[known[left]]), math.log(SEED_FP8[known[right]])
    return math.exp(y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def calibrate_with_noise(noise: random.Random, sd: float, refinements: int) -> Crossover:
    gains = {level: [math.log(true_ratio(level)) + noise.gauss(0, sd)] for level in (1, 2, 4, 8, 16, 32, 64, 128)}

    def points() -> list[Point]:
        return [Point(level, sum(values) / len(values), len(values)) for level, values in gains.items()]

    for _ in range(refinements):
        if (level := next_level(points(), BAND)) is not None:
            gains.setdefault(level, []).append(math.log(true_ratio(level)) + noise.gauss(0, sd))
    return find_crossover(points(), BAND)


def test_crossing_of_the_measured_pair_survives_the_noise_of_single_runs() -> None:
    noise = random.Random(1)
    found = [calibrate_with_noise(noise, sd=0.015, refinements=4) for _ in range(200)]
    assert all(crossover.verdict is Verdict.CROSSING for crossover in found)
    assert sum(abs((crossover.point or 0) / 50.7 - 1) < 0.2 for crossover in found) >= 198
