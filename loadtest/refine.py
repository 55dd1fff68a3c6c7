"""Which level to measure next, so that the answer does not hang on one cell. Pure.

In: what has been measured. Out: a level, or None when another measurement would not change the verdict.
"""

import math
from collections.abc import Sequence

from loadtest.crossing import Crossover, Point, Verdict, find_crossover, flanks

CLOSE = 1.25  # flanks closer than this are measured again instead of being split


ENOUGH_PAIRS = 3  # whose median no single stall can move


def next_level(points: Sequence[Point], band: float) -> int | None:
    """At a level that sticks out; else between the crossing's flanks, or at the one measured less often.

    Where there are several crossings, at the level most easily on the wrong side.
    """
    points = sorted(points, key=lambda point: point.level)
    if spike := _find_spike(points, 2 * math.log1p(band)):
        return spike.level
    crossover = find_crossover(points, band)
    match crossover.verdict:
        case Verdict.CROSSING | Verdict.REVERSED:
            return _split(crossover, points)
        case Verdict.SEVERAL:
            return _doubt(points)
        case _:
            return None


def _find_spike(points: Sequence[Point], height: float) -> Point | None:
    """The point farthest above both its neighbours, or below both: measured curves bend, a stalled machine spikes."""
    spikes = {
        point: min(abs(point.gain - left.gain), abs(point.gain - right.gain))
        for left, point, right in zip(points, points[1:], points[2:], strict=False)
        if (point.gain - left.gain) * (point.gain - right.gain) > 0 and point.pairs < ENOUGH_PAIRS
    }
    highest = max(spikes, key=lambda point: spikes[point], default=None)
    return highest if highest and spikes[highest] > height else None


def _split(crossover: Crossover, points: Sequence[Point]) -> int:
    low, high = flanks(crossover, [point.level for point in points])
    middle = round(math.sqrt(low * high))
    if high / low > CLOSE and low < middle < high:
        return middle
    return min((point for point in points if point.level in {low, high}), key=lambda point: point.pairs).level


def _doubt(points: Sequence[Point]) -> int:
    """The level most easily on the wrong side: measured least often, then nearest to a tie."""
    return min(points, key=lambda point: (point.pairs, abs(point.gain))).level
