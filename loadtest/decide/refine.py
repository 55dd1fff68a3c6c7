"""Which level to measure next, so that the answer becomes narrow and does not depend on one cell. Pure.

In: the estimate so far. Out: a level, or None when another pair would change nothing that matters.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.decide.confidence import hull
from loadtest.decide.crossing import Change, Finding, Verdict
from loadtest.decide.estimate import Estimate, Level


@dataclass(frozen=True, slots=True)
class Aim:
    """When to stop. `spread`: upper end of the confidence set over the lower one. The bracket around the crossing is
    split until the ratio of its levels is at most `close`, because within it the curve is taken for a straight line.
    Each of its levels gets at least `pairs` pairs.
    """

    spread: float = 1.25
    close: float = 1.5
    pairs: int = 2


def next_level(estimate: Estimate, finding: Finding, aim: Aim) -> int | None:
    """Chooses, for a crossing, a level that splits its bracket, then the neighbour of the set's ends known worst.

    An undecided finding leads to the doubtful level measured least, any other verdict to None: with several clear
    crossings more pairs cannot give a threshold.
    """
    match finding.verdict:
        case Verdict.CROSSING | Verdict.REVERSED:
            return _narrow(estimate, finding.changes[0], aim)
        case Verdict.UNDECIDED:
            return _resolve_doubt(estimate, finding)
        case _:
            return None


def _narrow(estimate: Estimate, change: Change, aim: Aim) -> int | None:
    low, high = _bracket(estimate.levels, change.point)
    rare = [level for level in (low, high) if level.pairs < aim.pairs]
    if rare:
        return rare[0].level
    middle = round(math.sqrt(low.level * high.level))
    if high.level / low.level > aim.close and low.level < middle < high.level:
        return middle
    if change.spread <= aim.spread:
        return None
    return max(_neighbours(estimate.levels, change), key=lambda level: (estimate.error(level), -level.level)).level


def _bracket(levels: Sequence[Level], point: float) -> tuple[Level, Level]:
    """Returns the measured levels on either side of `point`, which lies within their range."""
    right = bisect_right(levels, point, key=lambda level: level.level)
    right = min(max(right, 1), len(levels) - 1)
    return levels[right - 1], levels[right]


def _neighbours(levels: Sequence[Level], change: Change) -> Iterator[Level]:
    for end in hull(change.set):
        yield from _bracket(levels, end)


def _resolve_doubt(estimate: Estimate, finding: Finding) -> int | None:
    doubtful = [level for level in estimate.levels if level.level in finding.doubtful]
    least = min(doubtful, key=lambda level: (level.pairs, -estimate.error(level)), default=None)
    return least.level if least else None
