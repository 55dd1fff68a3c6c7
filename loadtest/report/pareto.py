"""What more throughput costs in time to first token: one line per backend, a point per level, as SVG text. Pure.

In: cells. Out: a chart on logarithmic axes, and which percentile it shows where. A percentile that is unknown,
for want of requests, is not drawn as another: a line is broken where the percentile changes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby

from loadtest.cell import Cell
from loadtest.curves import THROUGHPUT, series
from loadtest.report.chart import draw_dot
from loadtest.report.words import show_ms, show_rate

QUANTILES = ("p99", "p90", "p50")
STYLES = ("low", "high")
WIDTH, HEIGHT = 860, 360
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 40, 44
PAD = 0.06  # of an axis beyond its outermost points; at least so much that 1, 2 or 5 lies on it


@dataclass(frozen=True, slots=True)
class Point:
    level: int
    quantile: str
    throughput: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Logarithmic, from `low` at the place `start` to `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "Scale":
        pad = max(PAD * math.log(max(values) / min(values)), 0.5)
        return cls(min(values) / math.exp(pad), max(values) * math.exp(pad), start, end)

    def place(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.low) / math.log(self.high / self.low)

    @property
    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; the powers alone where that would be too many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if len(powers) < 5 else (1,)
        found = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in found if self.low <= tick <= self.high]


def draw_pareto(cells: Sequence[Cell], backends: tuple[str, str]) -> str:
    """`<svg>...</svg>`, empty where no time to first token is known."""
    lines = {backend: list(_points(cells, backend, choose_quantiles(cells))) for backend in backends}
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    across = Scale.over([point.throughput for point in points], LEFT, WIDTH - RIGHT)
    up = Scale.over([point.ttft_s for point in points], HEIGHT - BOTTOM, TOP)
    title = f"Time to first token ({_name_quantiles(points)}) against throughput; right and down is better"
    best = {level: max(p.throughput for p in points if p.level == level) for level in {p.level for p in points}}
    named = list(zip(backends, STYLES, strict=True))
    parts = [
        *_grid(across, up),
        *(part for name, style in named for part in _curve(name, style, lines[name], across, up)),
        *(part for name, style in named for part in _labels(style, lines[name], best, across, up)),
    ]
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<text class="title" x="0" y="14">{escape(title)}</text>{body}</svg>'
    )


def choose_quantiles(cells: Sequence[Cell]) -> dict[int, str]:
    """By level, the highest percentile that every backend measured there knows: they are compared by the same one."""
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
    """Which percentile stands at which levels; empty where it is one for all."""
    if len(set(quantiles.values())) < 2:
        return ""
    levels = ((name, [level for level, known in quantiles.items() if known == name]) for name in QUANTILES)
    places = "; ".join(f"{name} at {', '.join(map(str, at))} in flight" for name, at in levels if at)
    return f"{places}: a lower percentile stands where a cell has too few requests for a higher one."


def _points(cells: Sequence[Cell], backend: str, quantiles: dict[int, str]) -> Iterator[Point]:
    """Figures are medians of a level's repeats, as everywhere in the report."""
    rates = dict(series(cells, backend, THROUGHPUT.read))
    known = {quantile: dict(series(cells, backend, partial(_read, quantile=quantile))) for quantile in QUANTILES}
    for level, quantile in quantiles.items():
        if level in rates:
            yield Point(level, quantile, rates[level], known[quantile][level])


def _read(cell: Cell, quantile: str) -> float | None:
    value: float | None = getattr(cell.ttft_s, quantile)
    return value


def _name_quantiles(points: Sequence[Point]) -> str:
    known = {point.quantile for point in points}
    return ", ".join(quantile for quantile in QUANTILES if quantile in known)


def _grid(across: Scale, up: Scale) -> Iterator[str]:
    for tick in up.ticks:
        y = up.place(tick)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{show_ms(tick)}</text>'
    for tick in across.ticks:
        x = across.place(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text class="tick mid" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}">{tick:,g}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = "tokens per second; points are labelled with requests in flight"
    yield f'<text class="tick mid" x="{middle}" y="{HEIGHT - 6}">{label}</text>'


def _curve(name: str, style: str, points: Sequence[Point], across: Scale, up: Scale) -> Iterator[str]:
    yield f'<g class="{style}">'
    for _, run in groupby(points, key=lambda point: point.quantile):
        path = " ".join(f"{across.place(p.throughput):.1f},{up.place(p.ttft_s):.1f}" for p in run)
        yield f'<polyline points="{path}"/>'
    for point in points:
        x, y = across.place(point.throughput), up.place(point.ttft_s)
        figures = f"{show_rate(point.throughput)} tok/s, TTFT {point.quantile} {show_ms(point.ttft_s)}"
        yield draw_dot(style, x, y, escape(f"{name}, {point.level} in flight: {figures}"))
    yield "</g>"


def _labels(style: str, points: Sequence[Point], best: Mapping[int, float], across: Scale, up: Scale) -> Iterator[str]:
    """Drawn after all curves. The faster backend's stand right of its points, the other's left: they lie near."""
    for point in points:
        x, y = across.place(point.throughput), up.place(point.ttft_s)
        if point.throughput == best[point.level]:
            place = f'class="{style}-at" x="{x + 7:.1f}" y="{y + 14:.1f}"'
        else:
            place = f'class="{style}-at end" x="{x - 7:.1f}" y="{y - 6:.1f}"'
        yield f"<text {place}>{point.level}</text>"
