"""Which backend is better at which levels, and where that changes. Pure.

In: an Estimate. Out: a Finding. A level is clear if its gain differs significantly from zero; of a hundred findings one
errs anywhere. Between two neighbouring clear levels of opposite sign lies a crossing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from loadtest.decide.confidence import Interval, find_set, hull
from loadtest.decide.estimate import Estimate, Level

CLEAR_ALPHA = 0.01  # over all levels
TIE_ALPHA = 0.05
# For a 95 % set: the other 3 % pay for looking again after every pair, and for straight lines where curves bend. Chosen
# by simulation (docs/calibration.md).
SET_ALPHA = 0.02


class Verdict(StrEnum):
    CROSSING = "crossing"  # the low-load backend wins below one point, the other above it
    ALWAYS_LOW = "always low"
    ALWAYS_HIGH = "always high"
    TIE = "tie"  # everywhere surely within the band
    REVERSED = "reversed"  # one crossing, but the backend called `high` wins below it
    SEVERAL = "several crossings"
    UNDECIDED = "undecided"  # it takes more trials


@dataclass(frozen=True, slots=True)
class Change:
    """One crossing: its most likely place and its confidence set, both in requests in flight. `between`: the two clear
    levels around it.
    """

    point: float
    set: tuple[Interval, ...]
    between: tuple[int, int]

    @property
    def spread(self) -> float:
        """The set's upper end over its lower one."""
        low, high = hull(self.set)
        return high / low


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict. `changes`: one per crossing, rising. `doubtful`: levels neither clear nor surely within the band."""

    verdict: Verdict
    changes: tuple[Change, ...] = ()
    doubtful: tuple[int, ...] = ()

    @property
    def change(self) -> Change | None:
        """The crossing, where there is exactly one."""
        return self.changes[0] if len(self.changes) == 1 else None


def find_crossing(estimate: Estimate | None, band: float) -> Finding:
    """Finds who is better where, and where that changes. `band`: a share; backends closer than this are tied."""
    if estimate is None:
        return Finding(Verdict.UNDECIDED)
    edge, levels = math.log1p(band), estimate.levels
    clear, tied = find_clear(estimate), find_tied(estimate, band)
    doubtful = tuple(level.level for level in levels if level not in clear and level not in tied)
    if len(tied) == len(levels):
        return Finding(Verdict.TIE)
    changing = [(a, b) for a, b in pairwise(clear) if a.gain * b.gain < 0]
    changes = tuple(_locate(estimate, left, right) for left, right in changing)
    return Finding(_choose_verdict(estimate, clear, changing, edge), changes, doubtful)


def find_clear(estimate: Estimate) -> list[Level]:
    """Returns the levels whose gain surely differs from zero."""
    alpha = CLEAR_ALPHA / len(estimate.levels)
    return [level for level in estimate.levels if estimate.is_apart(level, 0, alpha)]


def find_tied(estimate: Estimate, band: float) -> list[Level]:
    """Returns the levels whose gain surely lies within the band. A level may be clear as well."""
    return [level for level in estimate.levels if estimate.is_within(level, math.log1p(band), TIE_ALPHA)]


def _choose_verdict(
    estimate: Estimate, clear: Sequence[Level], changing: Sequence[tuple[Level, Level]], edge: float
) -> Verdict:
    if len(changing) > 1:
        return Verdict.SEVERAL
    if changing:
        return Verdict.CROSSING if changing[0][0].gain > 0 else Verdict.REVERSED
    for sign, verdict in ((1, Verdict.ALWAYS_LOW), (-1, Verdict.ALWAYS_HIGH)):
        is_winner = any(sign * level.gain > 0 for level in clear)
        if is_winner and all(_is_no_worse(estimate, level, sign, edge) for level in estimate.levels):
            return verdict
    return Verdict.UNDECIDED


def _is_no_worse(estimate: Estimate, level: Level, sign: int, edge: float) -> bool:
    """Whether the backend that `sign` stands for is surely not behind by as much as the band."""
    return sign * level.gain > -edge and estimate.is_apart(level, -sign * edge, 2 * TIE_ALPHA)


def _locate(estimate: Estimate, left: Level, right: Level) -> Change:
    levels = estimate.levels
    between = levels[levels.index(left) : levels.index(right) + 1]
    parts = find_set(estimate, between, SET_ALPHA)
    return Change(_nearest(_find_point(between), parts), parts, (left.level, right.level))


def _nearest(point: float, parts: Sequence[Interval]) -> float:
    """Returns the place in the set that is nearest to `point`: where gains wiggle around zero, the monotone fit may lie
    between two parts of the set.
    """
    return min((min(max(point, low), high) for low, high in parts), key=lambda place: abs(math.log(place / point)))


def _find_point(between: Sequence[Level]) -> float:
    """Returns the zero of the monotone fit to the levels; the middle of its flat stretch where it has one at zero."""
    sign = math.copysign(1.0, between[0].gain)
    gains = [sign * level.gain for level in between]
    falling = list(_fit_falling(gains, [level.pairs / level.variance for level in between]))
    octaves = [level.octave for level in between]
    first = _find_zero(octaves, falling)
    last = _find_zero(octaves[::-1], falling[::-1])
    return float(2 ** ((first + last) / 2))


def _find_zero(octaves: Sequence[float], gains: Sequence[float]) -> float:
    """Returns the first place along `octaves` where the line through `gains` is zero. Its ends have opposite signs."""
    for (x0, y0), (x1, y1) in pairwise(zip(octaves, gains, strict=True)):
        if y0 * y1 <= 0 and y0 != y1:
            return x0 + (x1 - x0) * y0 / (y0 - y1)
    raise ValueError("the gains have no zero")


def _fit_falling(gains: Sequence[float], weights: Sequence[float]) -> Iterator[float]:
    """Yields the nearest falling sequence (pool adjacent violators): neighbours in the wrong order share their mean."""
    pools: list[tuple[float, float, int]] = []
    for gain, weight in zip(gains, weights, strict=True):
        mean, mass, count = gain, weight, 1
        while pools and pools[-1][0] < mean:
            before, more, others = pools.pop()
            mean = (before * more + mean * mass) / (more + mass)
            mass, count = more + mass, others + count
        pools.append((mean, mass, count))
    for mean, _, count in pools:
        yield from [mean] * count
