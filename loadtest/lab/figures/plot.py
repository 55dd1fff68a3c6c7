"""A plot of every system's CPU per token over the paced loads, as a stand-alone SVG. Pure."""

import math
from collections.abc import Iterator

from loadtest.lab.figures.summary import Summary, cpu_us_per_token
from loadtest.report.chart import Axis, Chart, Line, Point

LOADS = {"pace64": 64, "pace256": 256, "pace512": 512, "pace1000": 1000}
# Our own systems stand out. The others differ in lightness and dashes, so that the plot is readable without colour.
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
TITLE = "CPU per streamed token, by gateway and number of paced streams"
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:15px;font-weight:600}.grid{stroke:#ddd}"
    ".end{text-anchor:end}.mid{text-anchor:middle}polyline{fill:none;stroke-width:1.5}"
)


def render(summary: Summary) -> str:
    """Returns `<svg>...</svg>`; an empty text if no paced load was measured."""
    lines = list(_lines(summary))
    if not lines:
        return ""
    values = [point.y for line in lines for point in line.points]
    low = max((tick for tick in TICKS if tick <= min(values)), default=min(values))
    high = min((tick for tick in TICKS if tick >= max(values)), default=max(values))
    y_ticks = [(float(tick), f"{tick} us") for tick in TICKS if low <= tick <= high]
    y = Axis(low, high if high > low else 2 * low, y_ticks, is_log=True)
    x_ticks = [(float(streams), str(streams)) for streams in LOADS.values()]
    x = Axis(64, 1000, x_ticks, is_log=True, has_grid=False, title="streams of one token per 20 ms")
    chart = Chart(TITLE, lines, x, y, height=420, margin_right=170)
    # A chart within a page needs no namespace and has the page's style; a file of its own needs both.
    head, _, body = chart.render().removesuffix("</svg>").partition(">")
    background = f'<style>{STYLE}{"".join(_rules())}</style><rect width="100%" height="100%" fill="#fff"/>'
    return f'{head} xmlns="http://www.w3.org/2000/svg">{background}{body}{"".join(_labels(chart))}</svg>\n'


def _lines(summary: Summary) -> Iterator[Line]:
    for system in STYLES:
        known = [(streams, summary.median(scenario, system, cpu_us_per_token)) for scenario, streams in LOADS.items()]
        points = [
            Point(streams, value, f"{system}, {streams} streams: {value:.1f} us")
            for streams, value in known
            if value is not None
        ]
        if points:
            yield Line(system, points)


def _labels(chart: Chart) -> Iterator[str]:
    """Yields labels at the right end of each line, moved apart where they would overlap."""
    last_y = math.inf
    for line in sorted(chart.lines, key=lambda line: line.points[-1].y):
        end = line.points[-1]
        last_y = min(chart.y_at(end.y) + 4, last_y - 14)
        place = f'x="{chart.x_at(end.x) + 10:.1f}" y="{last_y:.1f}"'
        yield f'<text class="{line.style}-at" {place}>{line.style} {end.y:.1f}</text>'


def _rules() -> Iterator[str]:
    """Yields CSS for each system."""
    for system, (colour, dash) in STYLES.items():
        width = "stroke-width:2.5" if system.startswith("crossover") else f"stroke-dasharray:{dash or 'none'}"
        yield f".{system} polyline{{stroke:{colour};{width}}}.{system} circle,.{system}-at{{fill:{colour}}}"
