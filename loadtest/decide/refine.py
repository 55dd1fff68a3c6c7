"""Which level to measure next, so that the answer is narrow and does not hang on one cell. Pure.

In: what is known so far. Out: a level, or None when another pair would change nothing that matters.
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
    """When it is enough. `spread`: of the confidence set, upper end over lower. A bracket is split until its levels are
    `close` to each other, for between them a bend is taken for a straight line; each of them gets `pairs`.
    """

    spread: float = 1.25
    close: float = 1.5
    pairs: int = 2


def next_level(estimate: Estimate, finding: Finding, aim: Aim) -> int | None:
    """At a crossing: split its bracket, then measure again whichever neighbour of the set's ends is known worst.

    Undecided: the level in doubt that was measured least. Once several crossings are clear, no threshold is to be had.
    """
    match finding.verdict:
        case Verdict.CROSSING | Verdict.REVERSED:
            return _narrow(estimate, finding.changes[0], aim)
        case Verdict.UNDECIDED:
            return _settle(estimate, finding)
        case _:
            return None


def _narrow(estimate: Estimate, change: Change, aim: Aim) -> int | None:
    low, high = _bracket(estimate.levels, change.point)
    young = [level for level in (low, high) if level.pairs < aim.pairs]
    if young:
        return young[0].level
    middle = round(math.sqrt(low.level * high.level))
    if high.level / low.level > aim.close and low.level < middle < high.level:
        return middle
    if change.spread <= aim.spread:
        return None
    return max(_neighbours(estimate.levels, change), key=lambda level: (estimate.error(level), -level.level)).level


def _bracket(levels: Sequence[Level], point: float) -> tuple[Level, Level]:
    """The measured levels on either side of a place within their range."""
    right = bisect_right(levels, point, key=lambda level: level.level)
    right = min(max(right, 1), len(levels) - 1)
    return levels[right - 1], levels[right]


def _neighbours(levels: Sequence[Level], change: Change) -> Iterator[Level]:
    for end in hull(change.set):
        yield from _bracket(levels, end)


def _settle(estimate: Estimate, finding: Finding) -> int | None:
    doubtful = [level for level in estimate.levels if level.level in finding.doubtful]
    least = min(doubtful, key=lambda level: (level.pairs, -estimate.error(level)), default=None)
    return least.level if least else None
