"""Cells side by side: each backend's curve, and the gain of the low-load one by every objective. Pure."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.cell import Cell
from loadtest.crossing import Point


@dataclass(frozen=True, slots=True)
class Objective:
    """What to be good at. `band`: how far apart two backends must be to differ.

    Times to first token repeat to 9 % from run to run, everything else to about 1 % (docs/calibration.md, noise).
    """

    name: str
    read: Callable[[Cell], float | None]
    higher_is_better: bool = False
    band: float | None = None


OBJECTIVES = (
    Objective("throughput", lambda cell: cell.throughput, higher_is_better=True),
    Objective("ttft_p50", lambda cell: cell.ttft_s.p50, band=0.2),
    Objective("tpot_p50", lambda cell: cell.tpot_s.p50),
    Objective("e2e_p50", lambda cell: cell.e2e_s.p50),
)
THROUGHPUT = OBJECTIVES[0]


def pair_gains(cells: Iterable[Cell], low: str, objective: Objective = THROUGHPUT) -> dict[int, list[float]]:
    """Per level, the log ratio of each pair, positive where `low` is better. Half a pair counts for nothing."""
    pairs: dict[int, dict[str, Cell]] = {}
    for cell in cells:
        pairs.setdefault(cell.pair, {})[cell.backend] = cell
    gains: dict[int, list[float]] = {}
    for sides in pairs.values():
        if len(sides) == 2 and (gain := _gain(sides, low, objective)) is not None:
            gains.setdefault(next(iter(sides.values())).level, []).append(gain)
    return gains


def points(cells: Iterable[Cell], low: str, objective: Objective = THROUGHPUT) -> list[Point]:
    """One per level, the median of its pairs: a machine that stalls once must not move the crossing."""
    gains = pair_gains(cells, low, objective)
    return [Point(level, statistics.median(gains[level]), len(gains[level])) for level in sorted(gains)]


def repeat_sd(cells: Iterable[Cell], low: str) -> float | None:
    """Standard deviation of one throughput ratio, pooled over the levels measured more than once."""
    groups = [gains for gains in pair_gains(cells, low).values() if len(gains) > 1]
    if not groups:
        return None
    squares = sum(statistics.variance(gains) * (len(gains) - 1) for gains in groups)
    return math.sqrt(squares / sum(len(gains) - 1 for gains in groups))


def _gain(sides: dict[str, Cell], low: str, objective: Objective) -> float | None:
    mine = objective.read(sides[low])
    theirs = next(objective.read(cell) for name, cell in sides.items() if name != low)
    if not mine or not theirs:
        return None
    return math.log(mine / theirs) if objective.higher_is_better else math.log(theirs / mine)


def series(cells: Sequence[Cell], backend: str, read: Callable[[Cell], float | None]) -> list[tuple[int, float]]:
    """(level, value) along one backend's curve, each the median of its repeats, levels without a value left out."""
    values: dict[int, list[float]] = {}
    for cell in cells:
        if cell.backend == backend and (value := read(cell)) is not None:
            values.setdefault(cell.level, []).append(value)
    return [(level, statistics.median(values[level])) for level in sorted(values)]
