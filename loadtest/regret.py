"""Whether a threshold in force serves as well as the better of its two backends would alone. Pure.

In: cells with routing live beside cells of the better backend. Out: what was lost where, and whether that is too much.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.checks import Check
from loadtest.decide.estimate import quantile
from loadtest.decide.threshold import Threshold

ALPHA = 0.05  # that any level of an equal policy is taken for a loss


@dataclass(frozen=True, slots=True)
class Trip:
    """One level: requests go wherever routing sends them, and beside that all to `best`."""

    level: int
    best: str
    is_routed_first: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """What one trip found. `gain`: log of routed throughput over the better backend's; `served`: answers by backend."""

    level: int
    best: str
    gain: float
    served: dict[str, int]


def plan_trips(
    threshold: Threshold, point: float, backends: tuple[str, str], most: int, repeats: int
) -> Iterator[Trip]:
    """At both ends of the band, at the crossing and at twice that, none above `most`; upwards and downwards in turn.

    Within the band it matters where the load came from: upwards it still finds the low-load backend, downwards the
    other one.
    """
    low, high = backends
    levels = sorted({min(most, level) for level in (threshold.down, round(point), threshold.up, round(2 * point))})
    for repeat in range(repeats):
        for level in levels if repeat % 2 == 0 else levels[::-1]:
            yield Trip(level, low if level <= point else high, is_routed_first=repeat % 2 == 0)


def find_regret(losses: Sequence[Loss], most: float) -> Check:
    """Failed where routing is surely worse by more than `most`: one-sided t tests at all levels together."""
    gains: dict[int, list[float]] = {}
    for loss in losses:
        gains.setdefault(loss.level, []).append(loss.gain)
    dof = len(losses) - len(gains)
    if dof < 1:
        return Check("regret", "note", "no level was measured twice with routing live")
    variance = sum(statistics.pvariance(one) * len(one) for one in gains.values()) / dof
    reach = quantile(2 * ALPHA / len(gains), dof)
    worst = min(gains, key=lambda level: statistics.fmean(gains[level]))
    for level in sorted(gains, key=lambda one: statistics.fmean(gains[one])):
        upper = statistics.fmean(gains[level]) + reach * math.sqrt(variance / len(gains[level]))
        if upper < math.log1p(-most):
            share, best = math.exp(statistics.fmean(gains[level])), next(x.best for x in losses if x.level == level)
            told = f"REGRET: with routing live, c={level} has {share:.0%} of the throughput that {best} has alone."
            return Check("regret", "failed", f"{told} The policy before is in force again.")
    share, levels = math.exp(statistics.fmean(gains[worst])), ", ".join(map(str, sorted(gains)))
    return Check("regret", "passed", f"with routing live at {levels}: at least {share:.0%} of the better backend alone")
