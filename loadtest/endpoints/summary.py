"""What visits say together: each endpoint's means, and its ratio to the first one's, round by round. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.agreement.interval import Interval
from loadtest.cell import Cell
from loadtest.endpoints.tour import Visit

CONFIDENCE = 0.95

Figure = Callable[[Cell], float | None]

THROUGHPUT = "tok/s"
TTFT = "TTFT p50"
FIGURES: Mapping[str, Figure] = {
    THROUGHPUT: lambda cell: cell.throughput,
    TTFT: lambda cell: cell.ttft_s.p50,
    "TTFT p99": lambda cell: cell.ttft_s.p99,
    "TPOT p50": lambda cell: cell.tpot_s.p50,
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of one endpoint's figure to the first one's: geometric mean over rounds, with its 95 % interval by Student's t of
    the logarithms, in which what a round does to both cancels. From 0 to infinity with one round.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One endpoint at one level: means over rounds in tokens per second and seconds, None where too few requests tell.
    `client_cpu`: the most of one core that a process of the client's took.
    """

    endpoint: str
    level: int
    rounds: int
    figures: Mapping[str, float | None]
    throughput: Ratio
    ttft: Ratio | None
    client_cpu: float


def compare(visits: Sequence[Visit], names: Sequence[str]) -> list[Row]:
    """Level by level, in the order of `names`; ratios are to the first of them."""
    levels = sorted({visit.level for visit in visits})
    return [row for level in levels for row in _rows(level, names, visits)]


def _rows(level: int, names: Sequence[str], visits: Sequence[Visit]) -> Iterator[Row]:
    cells = {
        name: {visit.round: visit.cell for visit in visits if (visit.endpoint, visit.level) == (name, level)}
        for name in names
    }
    first = cells[names[0]]
    for name, own in cells.items():
        throughput = _ratio(first, own, FIGURES[THROUGHPUT])
        if throughput is not None:
            figures = {figure: _mean([read(cell) for cell in own.values()]) for figure, read in FIGURES.items()}
            busiest = max(cell.client_cpu for cell in own.values())
            yield Row(name, level, len(own), figures, throughput, _ratio(first, own, FIGURES[TTFT]), busiest)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if values and len(known) == len(values) else None


def _ratio(first: Mapping[int, Cell], own: Mapping[int, Cell], read: Figure) -> Ratio | None:
    """Of the rounds that both have; None where there are none, or where a figure is not known."""
    pairs = [(read(first[each]), read(own[each])) for each in sorted(first.keys() & own.keys())]
    logs = [math.log(theirs / ours) for ours, theirs in pairs if ours and theirs]
    if not logs or len(logs) < len(pairs):
        return None
    found = Interval.of(logs, CONFIDENCE)
    low, high = found.mean - found.half_width, found.mean + found.half_width
    return Ratio(math.exp(found.mean), math.exp(low), math.exp(min(high, 700.0)) if high < math.inf else math.inf)
