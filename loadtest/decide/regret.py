"""What routing costs on a trace: against the better engine of each moment, and against the better engine alone.

In: every answer's time, for each way of serving the same trace, in one or more repeats. Out: ratios with intervals,
and whether a policy may stay. Pure.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadtest.decide.soundness import Check

LEAST_ARRIVALS = 50  # in a window: the minimum of two noisy means is too low, the more so the fewer they are of
RESAMPLES = 1000
SURE = 0.95

# An arm's answer times, in seconds: by repeat, then by request of the trace.
Times: TypeAlias = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio, and the interval that holds it with the probability SURE; None for both with fewer than two repeats."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Regret:
    """One arm on one trace.

    `regret`: the sum of its answer times over the sum, for the same requests, of the better single engine's mean in
    their window. `over_best`: its mean answer time over that of the better single engine for the whole trace.
    """

    regret: Ratio
    over_best: Ratio
    mean_s: float
    p99_s: float


def check_regret(live: Regret, alone: Mapping[str, Regret], max_loss: float, what: str = "an answer") -> Check:
    """Returns a check: failed if in the mean `what` surely takes over `max_loss`, a share, longer than alone.

    `alone`: by backend. Sure is what the whole interval shows.
    """
    best, ratio = min(alone, key=lambda name: alone[name].mean_s), live.over_best
    found = f"with routing live, {what} takes {ratio.value:.2f} times as long as with {best} alone"
    if (ratio.value if ratio.low is None else ratio.low) <= 1 + max_loss:
        return Check("regret", "passed", f"{found}, while the load changes")
    advice = f"The policy before is in force again. Use {best} alone: over the whole rehearsal it was faster."
    return Check("regret", "failed", f"REGRET: {found}, while the load changes. {advice}")


def find_regret(arm: str, arms: Mapping[str, Times], singles: Sequence[str], seed: int = 0) -> Regret:
    """Returns the regret of an arm. All arms served the same requests, in the same number of repeats.

    Windows are of at least LEAST_ARRIVALS requests, the same for all arms. Intervals resample the repeats, each as a
    whole (a block bootstrap), because the answers of one repeat depend on each other.
    """
    repeats = len(arms[arm])
    every = tuple(range(repeats))
    draws = [every]
    if repeats > 1:
        draw = random.Random(seed)
        draws += [tuple(draw.choices(every, k=repeats)) for _ in range(RESAMPLES)]
    ratios = [_find_ratios(arm, arms, singles, chosen) for chosen in draws]
    times = sorted(time for repeat in arms[arm] for time in repeat)
    return Regret(
        regret=_make_ratio([regret for regret, _ in ratios]),
        over_best=_make_ratio([over_best for _, over_best in ratios]),
        mean_s=sum(times) / len(times),
        p99_s=times[min(int(0.99 * len(times)), len(times) - 1)],
    )


def find_windows(count: int) -> Sequence[tuple[int, int]]:
    """Divides so many requests into windows of LEAST_ARRIVALS or more. Returns the first of each, and of the next."""
    windows = max(count // LEAST_ARRIVALS, 1)
    return list(itertools.pairwise(index * count // windows for index in range(windows + 1)))


def _find_ratios(
    arm: str, arms: Mapping[str, Times], singles: Sequence[str], chosen: Sequence[int]
) -> tuple[float, float]:
    means = {name: _average([arms[name][index] for index in chosen]) for name in {arm, *singles}}
    windows = find_windows(len(means[arm]))
    sums = {name: [sum(mean[start:end]) for start, end in windows] for name, mean in means.items()}
    best = sum(map(min, zip(*(sums[name] for name in singles), strict=True)))
    return sum(sums[arm]) / best, sum(sums[arm]) / min(sum(sums[name]) for name in singles)


def _average(repeats: Times) -> Sequence[float]:
    """Averages each request's time over the repeats."""
    return [sum(times) / len(times) for times in zip(*repeats, strict=True)]


def _make_ratio(values: Sequence[float]) -> Ratio:
    """Makes a ratio of its value and those of the resamples."""
    if len(values) == 1:
        return Ratio(values[0])
    resampled = sorted(values[1:])
    tail = round((1 - SURE) / 2 * len(resampled))
    return Ratio(values[0], resampled[tail], resampled[-1 - tail])
