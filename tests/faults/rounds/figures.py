"""The arithmetic of a measurement, and how it is reported: percentiles, bounds, tables. Pure.

In: samples. Out: numbers and text. A bound without samples enough to judge it counts as missed.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.decide.estimate import quantile

ALPHA = 0.05  # of two-sided intervals: their lower ends are stricter than a one-sided bound's


@dataclass(frozen=True, slots=True)
class Bound:
    """A number and what it may be, `most` or `least`. `value`: None where it could not be measured."""

    name: str
    value: float | None
    most: float | None = None
    least: float | None = None

    @property
    def is_met(self) -> bool:
        if self.value is None:
            return False
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    @property
    def verdict(self) -> str:
        return "MET" if self.is_met else "MISSED" if self.value is not None else "MISSED (not measured)"

    @property
    def limit(self) -> str:
        sides = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{side} {limit:.4g}" for side, limit in sides if limit is not None)


@dataclass(slots=True)
class Result:
    """Of one kind of measurement. `raw`: what --json writes."""

    columns: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)  # Any: JSON

    def describe(self) -> str:
        judged = [(bound.name, show(bound.value), bound.limit, bound.verdict) for bound in self.bounds]
        return "\n".join((draw(self.columns, self.rows), "", draw(("bound", "measured", "limit", ""), judged)))


def percentile(samples: Iterable[float], share: float) -> float | None:
    """Returns the value that a `share` of the samples do not exceed, by linear interpolation; None without samples."""
    known = sorted(samples)
    if not known:
        return None
    at = share * (len(known) - 1)
    below, above = known[math.floor(at)], known[math.ceil(at)]
    return below if below == above else below + (above - below) * (at - math.floor(at))


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def find_lower_bound(samples: Sequence[float]) -> float | None:
    """Returns the lower end of the mean's 95 % interval, by Student's t; None for fewer than two samples."""
    if len(samples) < 2:
        return None
    margin = quantile(ALPHA, len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
    return statistics.fmean(samples) - margin


def find_greatest(samples: Iterable[float | None]) -> float | None:
    """Returns the greatest; None where one of them, or all, could not be measured."""
    known = list(samples)
    values = [sample for sample in known if sample is not None]
    return max(values) if values and len(values) == len(known) else None


def show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def draw(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table: the first column to the left, the others to the right."""
    texts = [list(columns), *([show(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    )
