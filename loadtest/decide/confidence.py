"""The confidence set of a crossing: every place that the trials do not rule out as the gain's zero. Pure.

Between neighbouring levels the gain is a straight line over log2 of the level. A place belongs to the set where the
line is not significantly different from zero: a test inverted at every place, as Fieller did for the ratio of two means
(Journal of the Royal Statistical Society B 16, 1954). Such a set may have several parts, and all of them are returned.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from loadtest.decide.estimate import Estimate, Level, quantile

Interval = tuple[float, float]


def find_set(estimate: Estimate, levels: Sequence[Level], alpha: float) -> tuple[Interval, ...]:
    """Returns the set in levels (not octaves), rising, within the range of `levels`, neighbours in `estimate`."""
    found: list[Interval] = []
    for left, right in pairwise(levels):
        for start, end in _solve(*_test(estimate, left, right, alpha)):
            width = right.octave - left.octave
            _join(found, (left.octave + start * width, left.octave + end * width))
    return tuple((float(2**start), float(2**end)) for start, end in found)


def hull(intervals: Sequence[Interval]) -> Interval:
    return intervals[0][0], intervals[-1][1]


def do_overlap(one: Sequence[Interval], other: Sequence[Interval]) -> bool:
    """Whether two sets have a place in common."""
    return any(low <= top and bottom <= high for low, high in one for bottom, top in other)


def _test(estimate: Estimate, left: Level, right: Level, alpha: float) -> tuple[float, float, float]:
    """Returns coefficients of gain(w)^2 - t^2 variance(w), where w is the share of the way from `left` to `right`."""
    t2 = quantile(alpha, min(left.dof, right.dof)) ** 2
    rise, turn = right.gain - left.gain, right.order - left.order
    a, b, c = left.variance / left.pairs, right.variance / right.pairs, estimate.order_variance
    return (
        left.gain**2 - t2 * (a + c * left.order**2),
        2 * left.gain * rise - 2 * t2 * (c * left.order * turn - a),
        rise**2 - t2 * (a + b + c * turn**2),
    )


def _solve(constant: float, linear: float, square: float) -> Iterator[Interval]:
    """Yields the intervals of [0, 1] in which the parabola is not above zero."""
    cuts = [0.0, *sorted(root for root in _roots(constant, linear, square) if 0 < root < 1), 1.0]
    for start, end in pairwise(cuts):
        middle = (start + end) / 2
        if constant + linear * middle + square * middle**2 <= 0:
            yield start, end


def _roots(constant: float, linear: float, square: float) -> tuple[float, ...]:
    if square == 0:
        return (-constant / linear,) if linear else ()
    inside = linear**2 - 4 * square * constant
    if inside <= 0:
        return ()
    q = -(linear + math.copysign(math.sqrt(inside), linear)) / 2  # neither root loses its digits
    return (q / square, constant / q) if q else (0.0,)


def _join(found: list[Interval], new: Interval) -> None:
    if found and new[0] - found[-1][1] < 1e-9:
        found[-1] = (found[-1][0], new[1])
    else:
        found.append(new)
