"""Cells side by side: each backend's curve, and what its pairs say of the low-load one by every objective. Pure."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadtest.cell import Cell
from loadtest.decide.trial import Trial


@dataclass(frozen=True, slots=True)
class Objective:
    """What to be good at. `band`: how far apart two backends must be to differ.

    Times to first token repeat to 9 % from run to run, everything else to about 1 % (docs/calibration.md, noise).
    """

    name: str
    read: Callable[[Cell], float | None]
    higher_is_better: bool = False
    band: float | None = None


def _read_goodput(cell: Cell) -> float | None:
    """None without limits. Where no answer kept them, half of one did: less than any, and still a ratio."""
    return None if cell.goodput is None else max(cell.goodput, 0.5 / cell.window_s)


OBJECTIVES = (
    Objective("throughput", lambda cell: cell.throughput, higher_is_better=True),
    Objective("ttft_p50", lambda cell: cell.ttft_s.p50, band=0.2),
    Objective("ttft_p99", lambda cell: cell.ttft_s.p99, band=0.2),
    Objective("tpot_p50", lambda cell: cell.tpot_s.p50),
    Objective("tpot_p99", lambda cell: cell.tpot_s.p99, band=0.06),
    Objective("e2e_p50", lambda cell: cell.e2e_s.p50),
    Objective("goodput", _read_goodput, higher_is_better=True),
)
THROUGHPUT, GOODPUT = OBJECTIVES[0], OBJECTIVES[-1]


def make_trials(cells: Iterable[Cell], low: str, objective: Objective = THROUGHPUT) -> list[Trial]:
    """One for each pair, in the order measured. Half a pair, a null pair, or one without a value counts for nothing."""
    trials = []
    for one, other in _pairs(cell for cell in cells if not cell.is_null):
        mine, theirs = (one, other) if one.backend == low else (other, one)
        if (gain := _gain(mine, theirs, objective)) is not None:
            trials.append(Trial(one.level, gain, low_first=one.backend == low))
    return trials


def null_gains(cells: Iterable[Cell], objective: Objective = THROUGHPUT) -> list[float]:
    """Of each pair of a backend with itself, what being measured second was worth. In log ratios; 0 but for chance."""
    pairs = _pairs(cell for cell in cells if cell.is_null)
    return [gain for one, other in pairs if (gain := _gain(other, one, objective)) is not None]


def mean_gains(trials: Iterable[Trial]) -> dict[int, float]:
    """Per level, rising; as shown while a run goes on."""
    gains: dict[int, list[float]] = {}
    for trial in trials:
        gains.setdefault(trial.level, []).append(trial.gain)
    return {level: statistics.fmean(gains[level]) for level in sorted(gains)}


def series(cells: Sequence[Cell], backend: str, read: Callable[[Cell], float | None]) -> list[tuple[int, float]]:
    """(level, value) along one backend's curve, each the median of its repeats, levels without a value left out."""
    values: dict[int, list[float]] = {}
    for cell in cells:
        if cell.backend == backend and (value := read(cell)) is not None:
            values.setdefault(cell.level, []).append(value)
    return [(level, statistics.median(values[level])) for level in sorted(values)]


def _pairs(cells: Iterable[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Whole ones, each in the order measured."""
    pairs: dict[int, list[Cell]] = {}
    for cell in cells:
        pairs.setdefault(cell.pair, []).append(cell)
    yield from ((pair[0], pair[1]) for pair in pairs.values() if len(pair) == 2)


def _gain(mine: Cell, theirs: Cell, objective: Objective) -> float | None:
    ours, others = objective.read(mine), objective.read(theirs)
    if not ours or not others:
        return None
    return math.log(ours / others) if objective.higher_is_better else math.log(others / ours)
