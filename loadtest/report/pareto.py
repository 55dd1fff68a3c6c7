"""Time to first token against throughput: one line per backend, a point per level, on logarithmic axes. Pure.

In: cells. Out: a chart, and which percentile it shows at which level. Where too few requests give no high percentile, a
lower one is drawn, and the line is broken.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from loadtest.report.chart import Chart, Line, Point, axis_of_powers
from loadtest.report.text import show_ms, show_rate
from loadtest.results.cell import Cell
from loadtest.results.curves import THROUGHPUT, make_curve

QUANTILES = ("p99", "p90", "p50")
PAD = 0.06  # of an axis beyond its outermost points; at least so much that 1, 2 or 5 lies on it


def draw_pareto(cells: Sequence[Cell], backends: tuple[str, str]) -> str:
    """Returns `<svg>...</svg>`; an empty text where no time to first token is known."""
    quantiles = choose_quantiles(cells)
    rates = {backend: dict(make_curve(cells, backend, THROUGHPUT.read)) for backend in backends}
    best = {level: max(own[level] for own in rates.values() if level in own) for level in quantiles}
    lines = [
        line
        for backend, style in zip(backends, ("low", "high"), strict=True)
        for line in _lines(cells, backend, style, quantiles, best)
    ]
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    shown = ", ".join(quantile for quantile in QUANTILES if quantile in quantiles.values())
    title = f"Time to first token ({shown}) against throughput; right and down is better"
    label = "tokens per second; points are labelled with requests in flight"
    x = axis_of_powers(*_pad([point.x for point in points]), "{:,g}".format, label)
    y = axis_of_powers(*_pad([point.y for point in points]), show_ms)
    return Chart(title, lines, x, y, height=360).render()


def choose_quantiles(cells: Sequence[Cell]) -> dict[int, str]:
    """Returns by level the highest percentile known of every backend measured there: all are compared by the same."""
    chosen = {}
    for level in sorted({cell.level for cell in cells}):
        here = [cell for cell in cells if cell.level == level]
        backends = {cell.backend for cell in here}
        for quantile in QUANTILES:
            if {cell.backend for cell in here if _read(cell, quantile) is not None} == backends:
                chosen[level] = quantile
                break
    return chosen


def describe_quantiles(quantiles: dict[int, str]) -> str:
    """Describes which percentile is shown at which levels; empty where it is the same at all levels."""
    if len(set(quantiles.values())) < 2:
        return ""
    levels = ((name, [level for level, known in quantiles.items() if known == name]) for name in QUANTILES)
    places = "; ".join(f"{name} at {', '.join(map(str, at))} in flight" for name, at in levels if at)
    return f"{places}: a lower percentile stands where a cell has too few requests for a higher one."


def _lines(
    cells: Sequence[Cell], backend: str, style: str, quantiles: dict[int, str], best: dict[int, float]
) -> Iterator[Line]:
    """Yields a line for each run of levels with the same percentile. Figures are medians of a level's repeats. Labels
    stand right of the faster backend's points and left of the other's, because the points lie near each other.
    """
    rates = dict(make_curve(cells, backend, THROUGHPUT.read))
    known = {name: dict(make_curve(cells, backend, partial(_read, quantile=name))) for name in QUANTILES}
    for quantile, levels in groupby((level for level in quantiles if level in rates), key=quantiles.__getitem__):
        points = []
        for level in levels:
            rate, ttft_s = rates[level], known[quantile][level]
            figures = f"{show_rate(rate)} tok/s, TTFT {quantile} {show_ms(ttft_s)}"
            title = f"{backend}, {level} in flight: {figures}"
            points.append(Point(rate, ttft_s, title, label=str(level), is_left=rate < best[level]))
        yield Line(style, points)


def _read(cell: Cell, quantile: str) -> float | None:
    value: float | None = getattr(cell.ttft_s, quantile)
    return value


def _pad(values: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of an axis with room around the values."""
    pad = math.exp(max(PAD * math.log(max(values) / min(values)), 0.5))
    return min(values) / pad, max(values) * pad
