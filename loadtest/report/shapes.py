"""shapes.md and shapes.html: how the crossing moves with the size of requests. Pure."""

from collections.abc import Iterator, Mapping
from itertools import cycle

from jinja2 import Environment, PackageLoader, StrictUndefined

from loadtest.curves import THROUGHPUT
from loadtest.report.chart import Chart, Line, Marks, axis_of_ratios
from loadtest.report.ratios import make_ratios
from loadtest.report.words import describe_finding, describe_set, show_ratio
from loadtest.shapes import Contrast, Shape, Shaped

HEADINGS = (
    "shape",
    "prompt tokens",
    "status",
    "who is better",
    "95 % set",
    "own threshold",
    "loss with the first's",
)
STYLES = ("shape-a", "shape-b", "shape-c", "shape-d", "shape-e", "shape-f")
CLOSE = 0.005  # a loss that is not worth a figure


def render_shapes_markdown(name: str, contrast: Contrast, folders: Mapping[Shape, str]) -> str:
    return "\n".join((*_lines(name, contrast, folders), ""))


def render_shapes_html(name: str, contrast: Contrast, folders: Mapping[Shape, str]) -> str:
    environment = Environment(
        loader=PackageLoader("loadtest.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    keys = [(str(row.shape), style) for row, style in zip(contrast.rows, cycle(STYLES), strict=False)]
    return environment.get_template("shapes.html.jinja").render(
        name=name,
        subject=contrast.rows[0].result.subject,
        sentences=describe_contrast(contrast),
        chart=_draw(contrast),
        keys=keys,
        headings=HEADINGS,
        rows=[(folders[row.shape], _fields(row)) for row in contrast.rows],
        band=contrast.rows[0].result.plan.band,
    )


def describe_contrast(contrast: Contrast) -> list[str]:
    """A sentence on whether the crossing moves, and one on what the one threshold costs."""
    return [_describe_move(contrast), _describe_cost(contrast)]


def _describe_move(contrast: Contrast) -> str:
    placed = [row for row in contrast.rows if row.change]
    if len(placed) < 2:
        return "Fewer than two shapes have one crossing each: there is nothing to compare."
    places = ", ".join(f"{row.shape} at {row.change.point:.1f}" for row in placed if row.change)
    if not contrast.moved:
        return f"The crossing may be the same for all shapes: {places}; every two confidence sets overlap."
    pairs = ", ".join(f"{one} and {other}" for one, other in contrast.moved)
    return f"The crossing moves with the shape: {places}. No overlap between the confidence sets of {pairs}."


def _describe_cost(contrast: Contrast) -> str:
    threshold, first = contrast.threshold, contrast.rows[0].shape
    if threshold is None:
        return f"{first}, the first shape, has no threshold that others could be held against."
    costs = [
        f"{row.shape} loses {row.worst.share:.0%} at {row.worst.level} in flight (it goes to {row.worst.backend})"
        for row in contrast.rows
        if row.worst and row.worst.share >= CLOSE
    ]
    by = f"By {first}'s threshold (up {threshold.up}, down {threshold.down})"
    return f"{by} {'; '.join(costs)}." if costs else f"{by} no shape surely loses anything at any level measured."


def _fields(row: Shaped) -> tuple[str, ...]:
    result, worst = row.result, row.worst
    own, prompt = result.threshold, result.prompt_tokens
    loss = f"{worst.share:.1%} at {worst.level}" if worst else "none"
    return (
        str(row.shape),
        f"{prompt:g}" if prompt else "n/a",
        result.status,
        describe_finding(THROUGHPUT, result),
        describe_set(THROUGHPUT, result).removeprefix("95 % sure: ") or "none",
        f"up {own.up}, down {own.down}" if own else "none",
        loss,
    )


def _draw(contrast: Contrast) -> str:
    """The ratio of each shape over requests in flight, with every crossing and every set."""
    lines = []
    for row, style in zip(contrast.rows, cycle(STYLES), strict=False):
        points = [(float(ratio.level), ratio.gain) for ratio in make_ratios(row.result)]
        lines.append(Line(str(row.shape), style, points))
    gains = [gain for line in lines for _, gain in line.points]
    if not gains:
        return ""
    changes = [row.change for row in contrast.rows if row.change]
    marks = Marks(
        tuple(change.point for change in changes),
        parts=tuple(part for change in changes for part in change.set),
        are_named=False,
    )
    subject = contrast.rows[0].result.subject
    title = f"Throughput of {subject.low} over {subject.high}, by shape"
    axis = axis_of_ratios(gains, contrast.rows[0].result.plan.band)
    return Chart(title, lines, axis, show_ratio, marks).render()


def _lines(name: str, contrast: Contrast, folders: Mapping[Shape, str]) -> Iterator[str]:
    yield f"# Calibration {name}: {len(contrast.rows)} shapes"
    yield ""
    for sentence in describe_contrast(contrast):
        yield sentence
        yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{' --- |' * len(HEADINGS)}"
    for row in contrast.rows:
        shape, *others = _fields(row)
        yield f"| [{shape}]({folders[row.shape]}/report.md) | {' | '.join(others)} |"
