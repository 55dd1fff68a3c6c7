"""Where two curves of gain over concurrency cross, if they do, and the threshold that follows. Pure.

In: the gain per level, a log ratio that is positive where the low-load backend is better. Out: a verdict.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

# Octaves of concurrency over which points count towards the crossing's last correction. With noise of 1.5 % per ratio
# on the pair of tests/loadtest/test_crossing.py it brings the error from 9 % down to 6 %.
KERNEL_OCTAVES = 0.4


class Verdict(StrEnum):
    CROSSING = "crossing"  # the low-load backend wins below one point, the other above it
    ALWAYS_LOW = "always low"
    ALWAYS_HIGH = "always high"
    TIE = "tie"  # nowhere apart by more than the band
    REVERSED = "reversed"  # one crossing, but the backend called `high` wins below it
    SEVERAL = "several crossings"


@dataclass(frozen=True, slots=True)
class Point:
    """The gain at one level, from `pairs` measurements."""

    level: int
    gain: float
    pairs: int = 1


@dataclass(frozen=True, slots=True)
class Crossover:
    """`point`: requests in flight where the gain is zero. `tie_zone`: where it is within the band around that point."""

    verdict: Verdict
    point: float | None = None
    tie_zone: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Threshold:
    up: int
    down: int


def find_crossover(points: Sequence[Point], band: float) -> Crossover:
    """The verdict, by levels apart by more than `band` (a share: 0.03); a sign that flips within it means nothing.

    The point lies between the last level that one backend wins and the first that the other wins, where the monotone
    fit of the levels between them is zero, corrected by a straight line through the levels near by.
    """
    points = sorted(points, key=lambda point: point.level)
    edge = math.log1p(band)
    clear = [index for index, point in enumerate(points) if abs(point.gain) > edge]
    changes = [(a, b) for a, b in pairwise(clear) if points[a].gain * points[b].gain < 0]
    if not clear:
        return Crossover(Verdict.TIE)
    if not changes:
        return Crossover(Verdict.ALWAYS_LOW if points[clear[0]].gain > 0 else Verdict.ALWAYS_HIGH)
    if len(changes) > 1:
        return Crossover(Verdict.SEVERAL)
    first, last = changes[0]
    return _locate(points[first : last + 1], points, edge)


def flanks(crossover: Crossover, levels: Sequence[int]) -> tuple[int, int]:
    """The measured levels on either side of the point."""
    point = crossover.point or 0.0
    return max(level for level in levels if level <= point), min(level for level in levels if level > point)


def set_threshold(point: float, margin: float) -> Threshold:
    """Up above the crossing and down below it by `margin`; never a `down` that no load can reach."""
    down = max(1, math.floor(point * (1 - margin)))
    return Threshold(up=max(down + 1, math.ceil(point * (1 + margin))), down=down)


def _locate(between: Sequence[Point], points: Sequence[Point], edge: float) -> Crossover:
    sign = 1.0 if between[0].gain > 0 else -1.0
    octaves = [math.log2(point.level) for point in between]
    falling = _fit_falling([sign * point.gain for point in between], [point.pairs for point in between])
    zone = (_cut(octaves, falling, edge), _cut(octaves, falling, -edge))
    rough = (_cut(octaves, falling, 0.0) + _cut(octaves[::-1], falling[::-1], 0.0)) / 2
    point = min(max(_straighten(rough, points, sign), zone[0]), zone[1])
    verdict = Verdict.CROSSING if sign > 0 else Verdict.REVERSED
    return Crossover(verdict, float(2**point), (float(2 ** zone[0]), float(2 ** zone[1])))


def _cut(octaves: Sequence[float], gains: Sequence[float], height: float) -> float:
    """The first place along `octaves` where the line through `gains` reaches `height`; it does, by its ends."""
    for (x0, y0), (x1, y1) in pairwise(zip(octaves, gains, strict=True)):
        if (y0 - height) * (y1 - height) <= 0 and y0 != y1:
            return x0 + (x1 - x0) * (y0 - height) / (y0 - y1)
    raise ValueError("the gains do not reach this height")


def _fit_falling(gains: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest falling sequence (pool adjacent violators): neighbours in the wrong order share their mean."""
    return [mean for mean, _, count in _pool(gains, weights) for _ in range(count)]


def _pool(gains: Sequence[float], weights: Sequence[float]) -> Sequence[tuple[float, float, int]]:
    pools: list[tuple[float, float, int]] = []
    for gain, weight in zip(gains, weights, strict=True):
        pool = (gain, float(weight), 1)
        while pools and pools[-1][0] < pool[0]:
            mean, mass, count = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    return pools


def _straighten(rough: float, points: Sequence[Point], sign: float) -> float:
    """One step from the rough crossing along the weighted straight line through the levels near it."""
    octaves = np.array([math.log2(point.level) - rough for point in points])
    gains = np.array([sign * point.gain for point in points])
    near = np.exp(-0.5 * (octaves / KERNEL_OCTAVES) ** 2) * np.array([point.pairs for point in points])
    middle, height = np.average(octaves, weights=near), np.average(gains, weights=near)
    falls = np.average((octaves - middle) * (gains - height), weights=near)
    spread = np.average((octaves - middle) ** 2, weights=near)
    return rough + float(middle - height * spread / falls) if falls < 0 else rough


def tied_levels(points: Sequence[Point], band: float) -> Iterator[int]:
    return (point.level for point in points if abs(point.gain) <= math.log1p(band))
