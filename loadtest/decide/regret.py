"""Whether routing by a threshold serves as well as the better of its two backends alone. Pure.

In: throughput with routing live, compared with that of the better backend. Out: a check on what routing loses.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.decide.estimate import quantile
from loadtest.decide.soundness import Check
from loadtest.decide.threshold import Threshold

ALPHA = 0.05  # probability that routing which loses nothing is refused, over all levels


@dataclass(frozen=True, slots=True)
class Trip:
    """Two cells at one level: one whose requests go wherever routing sends them, and one of the better backend."""

    level: int
    best: str
    is_routed_first: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """What one trip found. `gain`: log of routed throughput over the better backend's. `served`: routed answers by
    backend.
    """

    level: int
    best: str
    gain: float
    served: dict[str, int]


def plan_trips(
    threshold: Threshold, point: float, backends: tuple[str, str], max_level: int, repeats: int
) -> Iterator[Trip]:
    """Yields trips at both ends of the band, the crossing and twice it, up to `max_level`; upwards, downwards in turn.

    Within the band the direction of the load decides: upwards requests still go to the low-load backend, downwards to
    the other one.
    """
    low, high = backends
    levels = sorted({min(max_level, level) for level in (threshold.down, round(point), threshold.up, round(2 * point))})
    for repeat in range(repeats):
        for level in levels if repeat % 2 == 0 else levels[::-1]:
            yield Trip(level, low if level <= point else high, is_routed_first=repeat % 2 == 0)


def check_regret(losses: Sequence[Loss], max_loss: float) -> Check:
    """Returns a check: failed if routing surely loses over `max_loss`, a share, by one-sided t tests at all levels."""
    gains: dict[int, list[float]] = {}
    for loss in losses:
        gains.setdefault(loss.level, []).append(loss.gain)
    dof = len(losses) - len(gains)
    if dof < 1:
        return Check("regret", "note", "no level was measured twice with routing live")
    variance = sum(statistics.pvariance(own) * len(own) for own in gains.values()) / dof
    reach = quantile(2 * ALPHA / len(gains), dof)
    means = {level: statistics.fmean(own) for level, own in gains.items()}
    from_worst = sorted(means, key=lambda level: means[level])
    for level in from_worst:
        if means[level] + reach * math.sqrt(variance / len(gains[level])) < math.log1p(-max_loss):
            share, best = math.exp(means[level]), next(loss.best for loss in losses if loss.level == level)
            lost = f"REGRET: with routing live, c={level} has {share:.0%} of the throughput that {best} has alone."
            return Check("regret", "failed", f"{lost} The policy before is in force again.")
    share, levels = math.exp(means[from_worst[0]]), ", ".join(map(str, sorted(gains)))
    return Check("regret", "passed", f"with routing live at {levels}: at least {share:.0%} of the better backend alone")
