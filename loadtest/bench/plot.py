"""CPU per token of every system over the paced loads, as a stand-alone SVG. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from loadtest.bench.summary import Summary, cpu_us_per_token

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 170, 44, 44
LOADS = {"pace64": 64, "pace256": 256, "pace512": 512, "pace1000": 1000}
# Our own stand out; the others differ by lightness and dash, so that the plot also reads without colour.
STYLES = {
    "crossover-relay": ("#0b6bcb", ""),
    "crossover-token": ("#c2410c", ""),
    "nginx": ("#333333", ""),
    "haproxy": ("#666666", "6 3"),
    "vllm-router": ("#2e7d32", "6 3"),
    "smg": ("#7b4fa3", "2 3"),
    "litellm": ("#999999", "2 3"),
}
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True)
class Line:
    """(streams, microseconds), in rising order of streams."""

    name: str
    points: tuple[tuple[int, float], ...]


def render(summary: Summary) -> str:
    """`<svg>...</svg>`; empty if no paced load was measured."""
    lines = list(_lines(summary))
    if not lines:
        return ""
    scale = _Scale.around([value for line in lines for _, value in line.points])
    body = "".join((*_grid(scale), *_curves(lines, scale), *_labels(lines, scale)))
    title = "CPU per streamed token, by gateway and number of paced streams"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        "<style>text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:15px;font-weight:600}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/><text class="title" x="16" y="24">{title}</text>'
        f"{body}</svg>\n"
    )


def _lines(summary: Summary) -> Iterator[Line]:
    for system in STYLES:
        points = tuple(
            (streams, value)
            for scenario, streams in LOADS.items()
            if (value := summary.median(scenario, system, cpu_us_per_token)) is not None
        )
        if points:
            yield Line(system, points)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Both axes are logarithmic: a ratio is the same distance everywhere."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> "_Scale":
        low = max((tick for tick in TICKS if tick <= min(values)), default=min(values))
        high = min((tick for tick in TICKS if tick >= max(values)), default=max(values))
        return cls(low, high if high > low else 2 * low)

    def x(self, streams: float) -> float:
        first, last = math.log(min(LOADS.values())), math.log(max(LOADS.values()))
        return LEFT + (math.log(streams) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(scale: _Scale) -> Iterator[str]:
    for tick in (tick for tick in TICKS if scale.low <= tick <= scale.high):
        y = scale.y(tick)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick} us</text>'
    for streams in LOADS.values():
        yield f'<text x="{scale.x(streams):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{streams}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">streams of one token per 20 ms</text>'


def _curves(lines: Sequence[Line], scale: _Scale) -> Iterator[str]:
    for line in lines:
        colour, dash = STYLES[line.name]
        places = [(scale.x(streams), scale.y(value)) for streams, value in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        width = 2.5 if line.name.startswith("crossover") else 1.5
        pen = f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'
        yield f'<polyline points="{path}" fill="none" {pen}/>'
        for (x, y), (streams, value) in zip(places, line.points, strict=True):
            told = escape(f"{line.name}, {streams} streams: {value:.1f} us")
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{told}</title></circle>'


def _labels(lines: Sequence[Line], scale: _Scale) -> Iterator[str]:
    """At the right end of each line, moved apart where they would overlap."""
    last_y = math.inf
    for line in sorted(lines, key=lambda line: line.points[-1][1]):
        streams, value = line.points[-1]
        y = min(scale.y(value) + 4, last_y - 14)
        last_y = y
        colour, _ = STYLES[line.name]
        x = scale.x(streams) + 10
        yield f'<text x="{x:.1f}" y="{y:.1f}" style="fill:{colour}">{escape(line.name)} {value:.1f}</text>'
