"""A chart of lines, as SVG text. Pure; knows no measurement, only points, axes and marks.

Colours and type come from the page's style sheet by class, so that a chart follows its light and dark scheme.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined

TICK_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line. `title`: its tooltip. `span`: lower and upper end of a bar through it. `label`: a text right
    of it, or left of it with `is_left`.
    """

    x: float
    y: float
    title: str
    span: tuple[float, float] | None = None
    label: str = ""
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Points in rising order of x. `style`: the CSS class that colours them."""

    style: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`, with a label per tick. `band` is shaded across the chart."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False
    has_grid: bool = True
    title: str = ""
    band: tuple[float, float] | None = None

    def share(self, value: float) -> float:
        """Where `value` lies on the axis: 0 at `low`, 1 at `high`."""
        if self.high == self.low:
            return 0.5
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Marks:
    """Crossings, the parts of their confidence sets and the threshold around them, drawn across the chart. `stretches`:
    further stretches of the axis, which `stretch_title` names.
    """

    crossings: Sequence[float] = ()
    down: int | None = None
    up: int | None = None
    parts: Sequence[tuple[float, float]] = ()
    are_named: bool = True
    stretches: Sequence[tuple[float, float]] = ()
    stretch_title: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, drawn by templates/chart.svg.jinja. The two backends' points differ in shape as well as in colour."""

    title: str
    lines: Sequence[Line]
    x: Axis
    y: Axis
    marks: Marks = field(default_factory=Marks)
    width: int = 860
    height: int = 340
    margin_right: int = 16
    left: ClassVar[int] = 58
    top: ClassVar[int] = 34

    def render(self) -> str:
        """Returns `<svg>...</svg>`; an empty text if there is nothing to draw."""
        if not any(line.points for line in self.lines):
            return ""
        return render_template("chart.svg.jinja", chart=self, marks=self.marks).rstrip("\n")

    @property
    def right(self) -> int:
        return self.width - self.margin_right

    @property
    def bottom(self) -> int:
        return self.height - 40

    def x_at(self, value: float) -> float:
        """Returns the place in the drawing, in eighths of a pixel: sums of them are exact, so that they print short."""
        return round(8 * (self.left + self.x.share(value) * (self.right - self.left))) / 8

    def y_at(self, value: float) -> float:
        return round(8 * (self.bottom - self.y.share(value) * (self.bottom - self.top))) / 8

    def clamp(self, level: float) -> float:
        """Returns the place of `level`, or the nearest end of the axis."""
        return min(max(self.x_at(max(level, 0.5)), self.left), self.right)


def render_template(template: str, **values: object) -> str:
    return _make_environment().get_template(template).render(values)


@cache
def _make_environment() -> Environment:
    loader = PackageLoader("loadtest.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def axis_of_levels(levels: Sequence[float]) -> Axis:
    """Makes an axis of requests in flight, on a logarithmic scale."""
    ticks = [(level, f"{level:g}") for level in _doublings(levels)]
    ends = (levels[0], levels[-1]) if levels else (1.0, 1.0)
    return Axis(*ends, ticks, is_log=True, has_grid=False, title="requests in flight")


def axis_from_zero(values: Sequence[float], show: Callable[[float], str]) -> Axis:
    """Makes an axis with round ticks from zero to the greatest value or above."""
    greatest = max(values, default=1.0)
    step = _round_step(greatest / 4)
    count = max(1, math.ceil(greatest / step - 1e-9))
    return Axis(0.0, step * count, [(0.0, "0"), *((step * tick, show(step * tick)) for tick in range(1, count + 1))])


def axis_of_ratios(gains: Sequence[float], band: float) -> Axis:
    """Makes an axis of log ratios: ticks at round ratios around 1, equal steps up and down, the tie band shaded."""
    reach = (min(*gains, -2 * band), max(*gains, 2 * band))
    low, high = reach[0] - 0.1 * (reach[1] - reach[0]), reach[1] + 0.1 * (reach[1] - reach[0])
    step = _round_step((math.exp(high) - math.exp(low)) / 5)
    first, last = math.ceil((math.exp(low) - 1) / step), math.floor((math.exp(high) - 1) / step)
    ratios = [1 + step * tick for tick in range(first, last + 1) if 1 + step * tick > 0]
    ticks = [(math.log(ratio), f"{ratio:.4g}") for ratio in ratios]
    return Axis(low, high, ticks, band=(-math.log1p(band), math.log1p(band)))


def axis_of_powers(low: float, high: float, show: Callable[[float], str], title: str = "") -> Axis:
    """Makes a logarithmic axis: ticks at 1, 2, 5 times powers of ten; at the powers alone where those are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) < 5 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return Axis(low, high, [(tick, show(tick)) for tick in ticks if low <= tick <= high], is_log=True, title=title)


def _round_step(least: float) -> float:
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in TICK_STEPS if step * power >= least * (1 - 1e-9))


def _doublings(levels: Sequence[float]) -> list[float]:
    """Returns the levels that get a label: none that would run into its neighbour's."""
    kept = list(levels[:1])
    for level, following in pairwise([*levels[1:], math.inf]):
        if level >= 1.7 * kept[-1] and (following >= 1.7 * level or math.log2(level).is_integer()):
            kept.append(level)
    return kept
