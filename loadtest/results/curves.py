"""Cells compared: each backend's curve over the levels, and the gain of the low-load backend in every pair. Pure."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from loadtest.decide.estimate import Trial
from loadtest.results.cell import Cell

ReadFigure: TypeAlias = Callable[[Cell], float | None]
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Objective:
    """A figure by which backends are compared. `band`: how far apart they must be to differ; None: the plan's.

    Times to first token repeat to 9 % from run to run, everything else to about 1 % (docs/calibration.md, noise).
    """

    name: str
    read: ReadFigure
    higher_is_better: bool = False
    band: float | None = None


def _read_goodput(cell: Cell) -> float | None:
    """Reads goodput; None without an SLO. If no answer kept it, half an answer: less than any other, still a ratio."""
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
    """Makes a trial of each complete pair of both backends that has a value, in the order measured."""
    trials = []
    for one, other in _pairs(cell for cell in cells if not cell.is_null):
        mine, theirs = (one, other) if one.backend == low else (other, one)
        if (gain := _gain(mine, theirs, objective)) is not None:
            trials.append(Trial(one.level, gain, low_first=one.backend == low))
    return trials


def find_null_gains(cells: Iterable[Cell]) -> list[float]:
    """Returns each null pair's log ratio of the second throughput to the first: zero but for chance."""
    pairs = _pairs(cell for cell in cells if cell.is_null)
    return [gain for one, other in pairs if (gain := _gain(other, one, THROUGHPUT)) is not None]


def mean_gains(trials: Iterable[Trial]) -> dict[int, float]:
    """Averages the gains by level, rising; shown while a run is going on."""
    gains = group((trial.level, trial.gain) for trial in trials)
    return {level: statistics.fmean(gains[level]) for level in sorted(gains)}


def make_curve(cells: Sequence[Cell], backend: str, read: ReadFigure) -> list[tuple[int, float]]:
    """Returns (level, value) of one backend, each the median of its repeats; levels without a value are left out."""
    own = ((cell.level, read(cell)) for cell in cells if cell.backend == backend)
    values = group((level, value) for level, value in own if value is not None)
    return [(level, statistics.median(values[level])) for level in sorted(values)]


def group(items: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Groups values by key, both in the order given."""
    groups: dict[Key, list[Value]] = {}
    for key, value in items:
        groups.setdefault(key, []).append(value)
    return groups


def _pairs(cells: Iterable[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Yields complete pairs, each in the order measured."""
    pairs = group((cell.pair, cell) for cell in cells).values()
    yield from ((pair[0], pair[1]) for pair in pairs if len(pair) == 2)


def _gain(mine: Cell, theirs: Cell, objective: Objective) -> float | None:
    ours, others = objective.read(mine), objective.read(theirs)
    if not ours or not others:
        return None
    return math.log(ours / others) if objective.higher_is_better else math.log(others / ours)
