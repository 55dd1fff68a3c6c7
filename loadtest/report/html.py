"""report.html: one self-contained page, readable in light and dark, which fetches nothing."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from loadtest.report.cell_table import make_table
from loadtest.report.chart import (
    Chart,
    Line,
    Marks,
    Point,
    axis_from_zero,
    axis_of_levels,
    axis_of_ratios,
    render_template,
)
from loadtest.report.gpu_table import HEADINGS as GPU_HEADINGS
from loadtest.report.gpu_table import list_gpus
from loadtest.report.pareto import choose_quantiles, describe_quantiles, draw_pareto
from loadtest.report.ratios import HEADINGS, Ratio, make_ratios
from loadtest.report.rerun_command import describe_command
from loadtest.report.text import (
    describe_costs,
    describe_finding,
    describe_set,
    describe_threshold,
    describe_work,
    show_ms,
    show_rate,
    show_ratio,
)
from loadtest.results.curves import THROUGHPUT, ReadFigure, make_curve
from loadtest.results.result import Result, list_objectives

SMALL = {"width": 320, "height": 220}
LATENCIES: tuple[tuple[str, ReadFigure], ...] = (
    ("Time per output token, p50", lambda cell: cell.tpot_s.p50),
    ("Time to first token, p50", lambda cell: cell.ttft_s.p50),
    ("Whole request, p50", lambda cell: cell.e2e_s.p50),
)


def render_html(result: Result) -> str:
    ratios = make_ratios(result)
    return render_template(
        "report.html.jinja",
        result=result,
        work=describe_work(result.plan),
        threshold=describe_threshold(result),
        crossings=[
            (objective.name, describe_finding(objective, result), describe_set(objective, result))
            for objective in list_objectives(result.plan)
        ],
        throughput=_draw(result, "Throughput, tokens per second", THROUGHPUT.read, show_rate),
        ratio=_draw_ratio(result, ratios),
        ratios=ratios,
        ratio_headings=HEADINGS,
        pareto=draw_pareto(result.cells, result.system.backends),
        quantiles=describe_quantiles(choose_quantiles(result.cells)),
        latencies=[_draw(result, title, read, show_ms, **SMALL) for title, read in LATENCIES],
        table=make_table(result),
        gpus=list_gpus(result.cells),
        gpu_headings=GPU_HEADINGS,
        costs=describe_costs(result),
        counted_by_usage=all(cell.counted_by == "usage" for cell in result.cells),
        plan=asdict(result.plan),
        command=describe_command(result),
    )


def mark_crossings(results: Sequence[Result], are_named: bool = True) -> Marks:
    """Marks every crossing of throughput with every part of its set."""
    changes = [change for result in results if result.finding for change in result.finding.changes]
    return Marks(
        tuple(change.point for change in changes),
        parts=tuple(part for change in changes for part in change.set),
        are_named=are_named,
    )


def draw_ratios(title: str, lines: Sequence[tuple[str, str, Sequence[Ratio]]], band: float, marks: Marks) -> Chart:
    """Draws ratios of throughput over requests in flight. A line has a name, a style and its ratios."""
    drawn = [
        Line(
            style,
            [
                Point(ratio.level, ratio.gain, describe_point(name, ratio.level, show_ratio(ratio.gain)), ratio.ends)
                for ratio in ratios
            ],
        )
        for name, style, ratios in lines
    ]
    ratios = [ratio for _, _, own in lines for ratio in own]
    reach = [value for ratio in ratios for value in (ratio.gain, *(ratio.ends or ()))]
    x = axis_of_levels(sorted({float(ratio.level) for ratio in ratios}))
    return Chart(title, drawn, x, axis_of_ratios(reach, band), marks)


def describe_point(name: str, level: float, figure: str) -> str:
    return f"{name}, {level:g} in flight: {figure}"


def _draw(result: Result, title: str, read: ReadFigure, show: Callable[[float], str], **size: int) -> str:
    lines, values = [], []
    for name, style in zip(result.system.backends, ("low", "high"), strict=True):
        curve = make_curve(result.cells, name, read)
        lines.append(
            Line(style, [Point(level, value, describe_point(name, level, show(value))) for level, value in curve])
        )
        values += [value for _, value in curve]
    x = axis_of_levels(sorted({point.x for line in lines for point in line.points}))
    return Chart(title, lines, x, axis_from_zero(values, show), _mark(result, are_named=not size), **size).render()


def _draw_ratio(result: Result, ratios: Sequence[Ratio]) -> str:
    if not ratios:
        return ""
    title = f"Throughput of {result.system.low} over {result.system.high}; within the grey band they are tied"
    chart = draw_ratios(title, [("ratio", "ratio", ratios)], result.plan.band, _mark(result))
    return replace(chart, height=280).render()


def _mark(result: Result, are_named: bool = True) -> Marks:
    """Marks the crossings, and the threshold around them."""
    marks, threshold = mark_crossings([result], are_named), result.threshold
    return replace(marks, down=threshold.down, up=threshold.up) if threshold else marks
