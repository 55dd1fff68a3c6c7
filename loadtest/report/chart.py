"""One line chart over requests in flight, as SVG text. Pure; knows no measurement, only points and marks.

Colours and type come from the page's style sheet by class, so that a chart follows its light and dark scheme.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 58, 16, 34, 40
TICK_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Line:
    """(requests in flight, value) in rising order; `style` is the CSS class that colours it.

    `spans`: (requests in flight, lower end, upper end), drawn as a bar through the point there.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]
    spans: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, slots=True)
class Marks:
    """Crossings, the parts of their confidence sets and the threshold around them, drawn across the chart."""

    crossings: Sequence[float] = ()
    down: int | None = None
    up: int | None = None
    parts: Sequence[tuple[float, float]] = ()
    are_named: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """Vertical: from `low` to `high`, a label per tick; `band` is shaded across the chart."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    band: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    lines: Sequence[Line]
    axis: Axis
    show: Callable[[float], str]
    marks: Marks = field(default_factory=Marks)
    width: int = 860
    height: int = 340

    def render(self) -> str:
        """`<svg>...</svg>`, empty if there is nothing to draw."""
        if not any(line.points for line in self.lines):
            return ""
        body = "".join((*self._grid(), *self._band(), *self._marks(), *self._curves()))
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}">'
            f'<text class="title" x="0" y="14">{escape(self.title)}</text>{body}</svg>'
        )

    @property
    def _levels(self) -> list[float]:
        return sorted({x for line in self.lines for x, _ in line.points})

    @property
    def _bottom(self) -> float:
        return self.height - MARGIN_BOTTOM

    def _x(self, level: float) -> float:
        first, last = math.log2(self._levels[0]), math.log2(self._levels[-1])
        share = (math.log2(level) - first) / (last - first) if last > first else 0.5
        return MARGIN_LEFT + share * (self.width - MARGIN_LEFT - MARGIN_RIGHT)

    def _y(self, value: float) -> float:
        share = (value - self.axis.low) / (self.axis.high - self.axis.low)
        return self._bottom - share * (self._bottom - MARGIN_TOP)

    def _grid(self) -> Iterator[str]:
        right = self.width - MARGIN_RIGHT
        for value, label in self.axis.ticks:
            y = self._y(value)
            yield f'<line class="grid" x1="{MARGIN_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
            yield f'<text class="tick end" x="{MARGIN_LEFT - 8}" y="{y + 4:.1f}">{escape(label)}</text>'
        for level in _doublings(self._levels):
            yield f'<text class="tick mid" x="{self._x(level):.1f}" y="{self._bottom + 17:.1f}">{level:g}</text>'
        yield f'<text class="tick mid" x="{(MARGIN_LEFT + right) / 2}" y="{self.height - 4}">requests in flight</text>'

    def _band(self) -> Iterator[str]:
        if self.axis.band:
            low, high = (self._y(value) for value in self.axis.band)
            width = self.width - MARGIN_LEFT - MARGIN_RIGHT
            yield f'<rect class="tie" x="{MARGIN_LEFT}" y="{high:.1f}" width="{width}" height="{low - high:.1f}"/>'

    def _marks(self) -> Iterator[str]:
        marks = self.marks
        if marks.down is not None and marks.up is not None:
            left, right = self._clamp(marks.down), self._clamp(marks.up)
            yield self._stripe("zone", left, right)
            if marks.are_named:
                yield f'<text class="mark end" x="{left - 4:.1f}" y="{self._bottom - 6}">down {marks.down}</text>'
                yield f'<text class="mark" x="{right + 4:.1f}" y="{self._bottom - 6}">up {marks.up}</text>'
        for low, high in marks.parts:
            yield self._stripe("set", self._clamp(low), self._clamp(high), f"95 % set: {low:.3g} to {high:.3g}")
        for crossing in marks.crossings:
            x = self._clamp(crossing)
            yield f'<line class="crossing" x1="{x:.1f}" y1="{MARGIN_TOP}" x2="{x:.1f}" y2="{self._bottom}"/>'
            if marks.are_named:
                yield f'<text class="mark mid" x="{x:.1f}" y="{MARGIN_TOP - 6}">crossing {crossing:.1f}</text>'

    def _stripe(self, style: str, left: float, right: float, title: str = "") -> str:
        """From top to bottom, wide enough to be seen."""
        width, height = max(right - left, 2.0), self._bottom - MARGIN_TOP
        words = f"<title>{escape(title)}</title>" if title else ""
        place = f'x="{left:.1f}" y="{MARGIN_TOP}" width="{width:.1f}" height="{height}"'
        return f'<rect class="{style}" {place}>{words}</rect>'

    def _clamp(self, level: float) -> float:
        return min(max(self._x(max(level, 0.5)), MARGIN_LEFT), self.width - MARGIN_RIGHT)

    def _curves(self) -> Iterator[str]:
        for line in self.lines:
            places = [(self._x(x), self._y(y), x, y) for x, y in line.points]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places)
            yield f'<g class="{line.style}"><polyline points="{path}"/>'
            yield from (self._span(*span) for span in line.spans)
            for x, y, level, value in places:
                label = escape(f"{line.name}, {level:g} in flight: {self.show(value)}")
                yield draw_dot(line.style, x, y, label)
            yield "</g>"

    def _span(self, level: float, low: float, high: float) -> str:
        x, bottom, top = self._x(level), self._y(low), self._y(high)
        return (
            f'<path class="span" d="M{x:.1f} {bottom:.1f}V{top:.1f}M{x - 4:.1f} {top:.1f}h8m-8 {bottom - top:.1f}h8"/>'
        )


_SHAPES = {"high": "rect"}  # the two backends differ in shape as well as in colour


def draw_dot(style: str, x: float, y: float, title: str) -> str:
    """`title`: what it says when pointed at, escaped."""
    if _SHAPES.get(style) == "rect":
        return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"><title>{title}</title></rect>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{title}</title></circle>'


def axis_from_zero(values: Sequence[float], show: Callable[[float], str]) -> Axis:
    """Round ticks from zero to the greatest value or above."""
    greatest = max(values, default=1.0)
    step = _round_step(greatest / 4)
    count = max(1, math.ceil(greatest / step - 1e-9))
    return Axis(0.0, step * count, [(0.0, "0"), *((step * tick, show(step * tick)) for tick in range(1, count + 1))])


def axis_of_ratios(gains: Sequence[float], band: float) -> Axis:
    """For log ratios: ticks at round ratios around 1, equal steps up and down, the tie band shaded."""
    reach = (min(*gains, -2 * band), max(*gains, 2 * band))
    low, high = reach[0] - 0.1 * (reach[1] - reach[0]), reach[1] + 0.1 * (reach[1] - reach[0])
    step = _round_step((math.exp(high) - math.exp(low)) / 5)
    first, last = math.ceil((math.exp(low) - 1) / step), math.floor((math.exp(high) - 1) / step)
    ticks = [
        (math.log(1 + step * tick), f"{1 + step * tick:.4g}") for tick in range(first, last + 1) if 1 + step * tick > 0
    ]
    return Axis(low, high, ticks, (-math.log1p(band), math.log1p(band)))


def _round_step(least: float) -> float:
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in TICK_STEPS if step * power >= least * (1 - 1e-9))


def _doublings(levels: Sequence[float]) -> list[float]:
    """The levels worth a label: none that would run into its neighbour's."""
    kept = [levels[0]]
    for level, following in pairwise([*levels[1:], math.inf]):
        if level >= 1.7 * kept[-1] and (following >= 1.7 * level or math.log2(level).is_integer()):
            kept.append(level)
    return kept
