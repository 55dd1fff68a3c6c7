"""shapes.md and shapes.html: how the crossing moves with the size of requests. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle

from loadtest.report.chart import render_template
from loadtest.report.html import draw_ratios, mark_crossings
from loadtest.report.markdown import draw_table
from loadtest.report.ratios import make_ratios
from loadtest.report.text import describe_finding, describe_set
from loadtest.results.curves import THROUGHPUT
from loadtest.results.shapes import Shape, ShapeComparison, ShapeResult

HEADINGS = ("shape", "prompt tokens", "status", "who is better", "95 % set", "own threshold", "loss with the first's")
STYLES = ("shape-a", "shape-b", "shape-c", "shape-d", "shape-e", "shape-f")
SHOWN_LOSS = 0.005  # a smaller one is not mentioned


def render_shapes_markdown(name: str, comparison: ShapeComparison, folders: Mapping[Shape, str]) -> str:
    return "\n".join((*_lines(name, comparison, folders), ""))


def render_shapes_html(name: str, comparison: ShapeComparison, folders: Mapping[Shape, str]) -> str:
    first = comparison.rows[0].result
    return render_template(
        "shapes.html.jinja",
        name=name,
        system=first.system,
        sentences=describe_shapes(comparison),
        chart=_draw(comparison),
        keys=[(str(row.shape), style) for row, style in zip(comparison.rows, cycle(STYLES), strict=False)],
        headings=HEADINGS,
        rows=[(folders[row.shape], _fields(row)) for row in comparison.rows],
        band=first.plan.band,
    )


def describe_shapes(comparison: ShapeComparison) -> list[str]:
    """Returns a sentence on whether the crossing moves, and one on what the one threshold costs."""
    return [_describe_move(comparison), _describe_cost(comparison)]


def _describe_move(comparison: ShapeComparison) -> str:
    placed = [f"{row.shape} at {row.change.point:.1f}" for row in comparison.rows if row.change]
    if len(placed) < 2:
        return "Fewer than two shapes have one crossing each: there is nothing to compare."
    places = ", ".join(placed)
    if not comparison.moved:
        return f"The crossing may be the same for all shapes: {places}; every two confidence sets overlap."
    pairs = ", ".join(f"{one} and {other}" for one, other in comparison.moved)
    return f"The crossing moves with the shape: {places}. No overlap between the confidence sets of {pairs}."


def _describe_cost(comparison: ShapeComparison) -> str:
    threshold, first = comparison.threshold, comparison.rows[0].shape
    if threshold is None:
        return f"{first}, the first shape, has no threshold to compare the others with."
    costs = [
        f"{row.shape} loses {row.worst.share:.0%} at {row.worst.level} in flight (it goes to {row.worst.backend})"
        for row in comparison.rows
        if row.worst and row.worst.share >= SHOWN_LOSS
    ]
    by = f"By {first}'s threshold (up {threshold.up}, down {threshold.down})"
    return f"{by} {'; '.join(costs)}." if costs else f"{by} no shape surely loses anything at any level measured."


def _fields(row: ShapeResult) -> tuple[str, ...]:
    result, worst = row.result, row.worst
    own, prompt = result.threshold, result.prompt_tokens
    return (
        str(row.shape),
        f"{prompt:g}" if prompt else "n/a",
        result.status,
        describe_finding(THROUGHPUT, result),
        describe_set(THROUGHPUT, result).removeprefix("95 % sure: ") or "none",
        f"up {own.up}, down {own.down}" if own else "none",
        f"{worst.share:.1%} at {worst.level}" if worst else "none",
    )


def _draw(comparison: ShapeComparison) -> str:
    """Draws the ratio of each shape over requests in flight, with every crossing and every set."""
    ratios = [[replace(ratio, ends=None) for ratio in make_ratios(row.result)] for row in comparison.rows]
    if not any(ratios):
        return ""
    names = [str(row.shape) for row in comparison.rows]
    first = comparison.rows[0].result
    title = f"Throughput of {first.system.low} over {first.system.high}, by shape"
    marks = mark_crossings([row.result for row in comparison.rows if row.change], are_named=False)
    lines = list(zip(names, cycle(STYLES), ratios, strict=False))
    return draw_ratios(title, lines, first.plan.band, marks).render()


def _lines(name: str, comparison: ShapeComparison, folders: Mapping[Shape, str]) -> Iterator[str]:
    yield f"# Calibration {name}: {len(comparison.rows)} shapes"
    yield ""
    for sentence in describe_shapes(comparison):
        yield sentence
        yield ""
    fields = [_fields(row) for row in comparison.rows]
    links = [f"[{row.shape}]({folders[row.shape]}/report.md)" for row in comparison.rows]
    rows = [(link, *others) for link, (_, *others) in zip(links, fields, strict=True)]
    yield from draw_table(HEADINGS, rows, [" --- "] * len(HEADINGS))
