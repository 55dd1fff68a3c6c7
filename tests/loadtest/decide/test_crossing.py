"""From trials to a verdict, a set, a threshold and the next level: by hand, and in some hundred simulated runs."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from loadtest.calibration.schedule import next_pair
from loadtest.decide.confidence import find_set
from loadtest.decide.crossing import Change, Finding, Verdict, find_crossing
from loadtest.decide.estimate import Estimate, Level, Prior, Scatter, Trial, estimate, find_loud, fit_prior, quantile
from loadtest.decide.refine import Aim, next_level
from loadtest.decide.threshold import Threshold, set_threshold
from loadtest.results.cell import Pair
from loadtest.results.plan import FULL
from tests.loadtest.simulation import calibrate_in_sequence, run, scenarios, score, score_quiet_levels

BAND = 0.03
SEED_FP8 = {1: 1.145, 4: 1.054, 16: 1.017, 32: 1.055, 64: 0.974, 128: 0.616}
SCENARIOS = {scenario.name: scenario for scenario in scenarios()}


def trials(ratios: Mapping[int, float], scatter: float = 0.0002, repeats: int = 2) -> list[Trial]:
    """Both orders at each level, each pair a little off: the sign turns from level to level, no order is better."""
    return [
        Trial(level, math.log(ratio) + scatter * (-1) ** (repeat + place), low_first=repeat % 2 == 0)
        for repeat in range(repeats)
        for place, (level, ratio) in enumerate(ratios.items())
    ]


def estimated(some: Sequence[Trial]) -> Estimate:
    known = estimate(some)
    assert known is not None
    return known


def find(ratios: Mapping[int, float], scatter: float = 0.0002, repeats: int = 2) -> Finding:
    return find_crossing(estimate(trials(ratios, scatter, repeats)), BAND)


# Estimates


def test_a_levels_gain_is_the_mean_of_its_pairs_and_order_falls_out() -> None:
    first = 0.02
    some = [Trial(4, 0.1 + first, True), Trial(4, 0.1 - first, False), Trial(8, -0.1 + first, True)]
    assert estimate(some) is None  # three pairs for two means and an effect: nothing is left to know their scatter by
    twice = [replace(trial, gain=trial.gain + off) for trial in some[:2] for off in (0.001, -0.001)]
    known = estimated([*twice, some[2]])
    assert [level.gain for level in known.levels] == pytest.approx([0.1, -0.1])
    assert known.order_effect == pytest.approx(first)
    assert known.levels[1].pairs == 1
    assert known.error(known.levels[1]) > known.error(known.levels[0])


def test_one_pair_per_level_says_nothing() -> None:
    for few in ([], [Trial(1, 0.1, True), Trial(2, -0.1, False)]):
        assert estimate(few) is None
    assert find_crossing(None, BAND).verdict is Verdict.UNDECIDED


def test_levels_that_scatter_alike_share_one_variance_and_all_degrees_of_freedom() -> None:
    known = estimated(trials({1: 1.1, 2: 1.1, 4: 1.1, 8: 1.1}, scatter=0.01, repeats=4))
    assert {round(level.variance, 9) for level in known.levels} == {round(known.pair_sd**2, 9)}
    assert [level.dof for level in known.levels] == pytest.approx([4 * 4 - 4 - 1] * 4)


def test_a_level_that_scatters_more_keeps_most_of_its_own_variance() -> None:
    quiet = [*trials({1: 1.1, 2: 1.1, 4: 1.1, 8: 1.1, 16: 1.1, 32: 1.1}, scatter=0.005, repeats=6)]
    loud = [Trial(64, 0.2 * (-1) ** (number // 2), number % 2 == 0) for number in range(6)]
    known = estimated([*quiet, *loud])
    assert known.levels[-1].variance > 100 * known.levels[0].variance
    assert known.levels[-1].dof < 20


def test_the_prior_is_found_that_variances_were_drawn_from() -> None:
    """True variances 2 * 10 / chi2(10), seen through 4 degrees of freedom each."""
    chance = random.Random(0)

    def chi2(dof: int) -> float:
        return sum(chance.gauss(0, 1) ** 2 for _ in range(dof))

    seen = [Scatter(number, 2 * 10 / chi2(10) * chi2(4), 4.0) for number in range(4000)]
    prior = fit_prior(seen, Prior(1.0, math.inf))
    assert prior.variance == pytest.approx(2, rel=0.05)
    assert prior.dof == pytest.approx(10, rel=0.15)
    pooled = Prior(1.0, math.inf)  # variances that differ by chance alone are one
    assert fit_prior([Scatter(1, 1.8, 2), Scatter(2, 2.0, 2), Scatter(4, 2.2, 2)], pooled) == pooled


@pytest.mark.parametrize("noise", [0.04, 0.1, 0.3])
def test_four_quiet_levels_stay_clear_beside_a_noisy_one(noise: float) -> None:
    """Two pairs at each level."""
    some = trials({1: 1.15, 32: 1.1, 64: 0.92, 128: 0.8}, scatter=0.002)
    noisy = [Trial(8, math.log(1.12) + noise, True), Trial(8, math.log(1.12) - noise, False)]
    found = find_crossing(estimate([*some, *noisy]), BAND)
    assert found.verdict is Verdict.CROSSING
    assert set(found.doubtful) <= {8}
    known = estimated([*some, *noisy])
    assert known.levels[1].variance > 100 * known.levels[0].variance


@pytest.mark.parametrize(("noisy", "least"), [(1.0, 0.88), (5.0, 0.66), (10.0, 0.65)])
def test_quiet_levels_are_clear_in_most_runs_beside_a_noisy_one(noisy: float, least: float) -> None:
    """With infinite degrees of freedom of the prior: 0.93, 0.57 and 0.45."""
    clear, holding = score_quiet_levels(noisy, 500)
    assert clear > least
    assert holding > 0.9


def test_a_noisy_level_that_may_be_chance_keeps_some_of_its_own_variance() -> None:
    some = [*trials({1: 1.1, 8: 1.1, 64: 1.1, 128: 1.1}, scatter=0.01)]
    known = estimated([*some, Trial(32, 0.14, True), Trial(32, 0.06, False)])
    quiet, noisy = known.levels[0], known.levels[2]
    assert 1.2 * quiet.variance < noisy.variance < 9 * quiet.variance


def test_a_level_out_of_all_proportion_is_loud_and_one_by_chance_is_not() -> None:
    usual = [Scatter(level, 0.8e-5, 0.8) for level in (1, 8, 32, 45, 64)]
    loud = Scatter(128, 320e-5, 0.8)
    assert find_loud([*usual, loud]) == [loud]
    assert find_loud([*usual, Scatter(128, 8e-5, 0.8)]) == []
    assert find_loud([loud]) == []


@pytest.mark.parametrize(("alpha", "dof", "t"), [(0.05, 10, 2.2281), (0.05, 1e12, 1.96), (0.01, 5, 4.0321)])
def test_students_t(alpha: float, dof: float, t: float) -> None:
    assert quantile(alpha, dof) == pytest.approx(t, rel=1e-3)


# Sets


def estimate_of(*levels: Level) -> Estimate:
    return Estimate(levels, 0.0, 0.0, 0.01, math.inf)


def level(at: int, gain: float, variance: float = 1e-4, pairs: int = 1) -> Level:
    return Level(at, gain, pairs, variance, math.inf)


def test_the_set_holds_exactly_the_places_that_the_test_does_not_reject() -> None:
    left, right = level(8, 0.1), level(32, -0.06)
    known = estimate_of(left, right)
    ((low, high),) = find_set(known, known.levels, 0.05)
    for place, is_inside in ((low * 1.001, True), (low * 0.999, False), (high * 0.999, True), (high * 1.001, False)):
        w = (math.log2(place) - 3) / 2
        gain, error = 0.1 - 0.16 * w, 0.01 * math.hypot(1 - w, w)
        assert (abs(gain) <= 1.95996 * error) is is_inside


def test_a_set_may_have_several_parts_and_neighbouring_stretches_are_one() -> None:
    wiggle = [level(1, 0.1), level(2, 0.005), level(4, 0.06), level(8, 0.004), level(16, -0.1)]
    parts = find_set(estimate_of(*wiggle), wiggle, 0.05)
    assert len(parts) == 2
    assert parts[0][0] < 2 < parts[0][1] < 4 < parts[1][0] < 8 < parts[1][1]


# Verdicts


def test_measured_fp8_pair_crosses_where_its_lines_do() -> None:
    found = find(SEED_FP8)
    assert found.verdict is Verdict.CROSSING
    (change,) = found.changes
    assert change.point == pytest.approx(50.7, rel=0.01)
    ((low, high),) = change.set
    assert 49 < low < change.point < high < 53
    assert change.between == (32, 64)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ({1: 1.2, 2: 1.1, 4: 1.05}, Verdict.ALWAYS_LOW),
        ({1: 1.2, 2: 1.1, 4: 0.99}, Verdict.CROSSING),
        ({1: 0.9, 2: 0.8, 4: 0.7}, Verdict.ALWAYS_HIGH),
        ({1: 1.01, 2: 0.99, 4: 1.01}, Verdict.TIE),
        ({1: 1.2, 2: 0.8, 4: 1.2}, Verdict.SEVERAL),
        ({1: 0.8, 2: 0.9, 4: 1.2}, Verdict.REVERSED),
        ({1: 1.2, 8: 0.8}, Verdict.CROSSING),
    ],
)
def test_verdict_goes_by_levels_that_are_clearly_apart(ratios: dict[int, float], verdict: Verdict) -> None:
    assert find(ratios).verdict is verdict


@pytest.mark.parametrize(
    ("ratios", "repeats", "verdict", "doubtful"),
    [
        ({1: 1.3, 2: 1.2, 4: 1.04}, 2, Verdict.UNDECIDED, (1, 2, 4)),  # two pairs a level, and none is clear
        ({1: 1.3, 2: 1.2, 4: 1.04}, 6, Verdict.ALWAYS_LOW, (4,)),  # surely not behind by the band
        ({1: 1.3, 2: 1.2, 4: 0.98}, 6, Verdict.UNDECIDED, (4,)),
        ({1: 0.98, 2: 1.02, 4: 0.97}, 6, Verdict.UNDECIDED, (1, 2, 4)),
    ],
)
def test_what_noise_may_have_done_is_undecided_and_says_where(
    ratios: dict[int, float], repeats: int, verdict: Verdict, doubtful: tuple[int, ...]
) -> None:
    found = find(ratios, 0.03, repeats)
    assert (found.verdict, found.doubtful) == (verdict, doubtful)


def test_a_flip_within_noise_at_a_low_level_is_not_the_crossing() -> None:
    found = find({1: 1.14, 2: 1.08, 4: 1.05, 8: 1.04, 16: 0.99, 32: 1.05, 64: 0.9, 128: 0.6}, scatter=0.008)
    assert found.verdict is Verdict.CROSSING
    assert 32 < found.changes[0].point < 64


def test_flips_between_the_winners_are_one_crossing_whose_set_has_a_part_for_each() -> None:
    found = find({8: 1.1, 16: 0.99, 32: 1.01, 64: 0.9}, scatter=0.005, repeats=4)
    assert found.verdict is Verdict.CROSSING
    (change,) = found.changes
    assert change.between == (8, 64)
    assert len(change.set) == 3
    assert any(low <= change.point <= high for low, high in change.set)
    assert change.spread > 2
    assert find({8: 1.1, 16: 0.99, 32: 1.01, 64: 0.9}, scatter=0.001, repeats=4).verdict is Verdict.SEVERAL


def test_a_reversed_pair_crosses_at_the_same_point_and_so_does_one_measured_backwards() -> None:
    mirrored, straight = find({level: 1 / ratio for level, ratio in SEED_FP8.items()}), find(SEED_FP8)
    backwards = find_crossing(estimate(trials(SEED_FP8)[::-1]), BAND)
    assert backwards.changes[0].point == pytest.approx(straight.changes[0].point)
    assert mirrored.verdict is Verdict.REVERSED
    assert mirrored.changes[0].point == pytest.approx(straight.changes[0].point)
    assert mirrored.changes[0].set[0] == pytest.approx(straight.changes[0].set[0])


# Thresholds


@pytest.mark.parametrize(
    ("point", "parts", "threshold"),
    [
        (100.0, ((95.0, 105.0),), Threshold(up=115, down=85)),
        (100.0, ((80.0, 130.0),), Threshold(up=130, down=80)),
        (100.0, ((70.0, 80.0), (90.0, 120.0)), Threshold(up=120, down=70)),
        (9.0, ((8.5, 9.5),), Threshold(up=12, down=6)),  # 1 / sqrt(9) is more than 15 %
        (1.2, ((1.1, 1.3),), Threshold(up=3, down=1)),
    ],
)
def test_the_threshold_lies_outside_set_and_margin(
    point: float, parts: tuple[tuple[float, float], ...], threshold: Threshold
) -> None:
    assert set_threshold(Change(point, parts, (1, 128)), margin=0.15) == threshold


# What is measured next


@pytest.mark.parametrize(
    ("ratios", "scatter", "level"),
    [
        (SEED_FP8, 0.0001, 45),  # however narrow the set: within an octave curves bend
        ({32: 1.2, 45: 1.05, 64: 0.9}, 0.01, None),
        ({1: 1.3, 2: 1.2, 4: 0.98}, 0.03, 4),  # in doubt
        ({1: 1.3, 2: 1.2, 4: 1.1}, 0.001, None),
        ({1: 1.0, 2: 1.0}, 0.001, None),
        ({1: 1.2, 2: 0.8, 4: 1.2}, 0.001, None),
    ],
)
def test_the_next_level_is_where_another_pair_helps_most(
    ratios: dict[int, float], scatter: float, level: int | None
) -> None:
    known = estimated(trials(ratios, scatter, repeats=4))
    assert next_level(known, find_crossing(known, BAND), Aim()) == level


def test_once_levels_are_close_the_worst_known_neighbour_of_the_set_is_measured_again() -> None:
    ratios = {32: 1.1, 45: 1.02, 64: 0.93}
    some = [*trials(ratios, 0.03, repeats=6), *trials({32: 1.1, 45: 1.02}, 0.03, repeats=4)]
    known = estimated(some)
    found = find_crossing(known, BAND)
    assert next_level(known, found, Aim(spread=1.1)) == 64
    assert next_level(known, found, Aim(spread=1.3)) is None


def test_a_level_that_splits_the_bracket_is_measured_twice() -> None:
    some = [*trials({32: 1.2, 64: 0.9}, 0.0001, repeats=4), Trial(45, 0.05, True)]
    known = estimated(some)
    assert next_level(known, find_crossing(known, BAND), Aim()) == 45


def test_the_sweep_comes_first_and_further_pairs_turn_the_order_at_their_level() -> None:
    plan = replace(FULL, levels=(8, 32), repeats=2, null_pairs=1, refine_pairs=2, shuffle=False)
    schedule = plan.schedule()
    assert [pair.is_null for pair in schedule] == [True, False, False, False, False]
    assert [next_pair(plan, done, ()) for done in range(5)] == schedule
    some = trials({8: 1.1, 32: 0.9}, scatter=0.0002)
    assert next_pair(plan, 5, some) == Pair(16, low_first=not some[-1].low_first)
    some.append(Trial(16, 0.02, True))
    assert next_pair(plan, 6, some) == Pair(16, low_first=False)
    assert next_pair(plan, 7, some) is None


# Truth: a few hundred simulated runs of each kind; a thousand: python -m tests.loadtest.simulation

RUNS = 200
CROSSINGS = [name for name, scenario in SCENARIOS.items() if scenario.truth]
NONE_OR_SEVERAL = [name for name, s in SCENARIOS.items() if not s.truth and s.verdict is not Verdict.TIE]


@pytest.mark.slow
@pytest.mark.parametrize("name", CROSSINGS)
def test_the_set_holds_the_truth(name: str) -> None:
    """0.93 is promised; of 200 runs that hold it so often, fewer than 0.88 hold it once in 200 times."""
    result = run(SCENARIOS[name], RUNS, seed=1)
    assert (result.coverage or 0) >= 0.88
    assert SCENARIOS[name].noise > 0.01 or (result.width or 9) <= 1.3


@pytest.mark.slow
@pytest.mark.parametrize("name", NONE_OR_SEVERAL)
def test_none_and_several_crossings_are_found(name: str) -> None:
    assert run(SCENARIOS[name], RUNS, seed=1).correct >= 0.91


@pytest.mark.slow
def test_one_sweep_after_the_other_is_wrong_where_the_machine_drifts() -> None:
    drifting = SCENARIOS["bend 45, drift -3%"]
    sequence = score(drifting, [calibrate_in_sequence(drifting, f"1/{number}") for number in range(RUNS)])
    assert (sequence.coverage or 0) < 0.5
    assert (run(drifting, RUNS, seed=1).coverage or 0) >= 0.88
