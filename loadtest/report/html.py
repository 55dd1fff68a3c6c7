"""report.html: one self-contained page, readable in light and dark, with nothing fetched from anywhere."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from jinja2 import Environment, PackageLoader, StrictUndefined

from loadtest.cell import Cell
from loadtest.curves import THROUGHPUT, series
from loadtest.report.chart import Axis, Chart, Line, Marks, axis_from_zero, axis_of_ratios
from loadtest.report.command import describe_command
from loadtest.report.cost import describe_costs
from loadtest.report.gpus import HEADINGS as GPU_HEADINGS
from loadtest.report.gpus import list_gpus
from loadtest.report.pareto import choose_quantiles, describe_quantiles, draw_pareto
from loadtest.report.ratios import HEADINGS, Ratio, make_ratios
from loadtest.report.table import make_table
from loadtest.report.words import (
    describe_finding,
    describe_set,
    describe_threshold,
    describe_work,
    show_ms,
    show_rate,
    show_ratio,
)
from loadtest.result import Result, objectives_of

SMALL = {"width": 320, "height": 220}
LATENCIES = (
    ("Time per output token, p50", lambda cell: cell.tpot_s.p50),
    ("Time to first token, p50", lambda cell: cell.ttft_s.p50),
    ("Whole request, p50", lambda cell: cell.e2e_s.p50),
)


def render_html(result: Result) -> str:
    environment = Environment(
        loader=PackageLoader("loadtest.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    ratios = make_ratios(result)
    return environment.get_template("report.html.jinja").render(
        result=result,
        work=describe_work(result.plan),
        threshold=describe_threshold(result),
        crossings=[(o.name, describe_finding(o, result), describe_set(o, result)) for o in objectives_of(result.plan)],
        throughput=_draw(result, "Throughput, tokens per second", THROUGHPUT.read, show_rate),
        ratio=_draw_ratio(result, ratios),
        ratios=ratios,
        ratio_headings=HEADINGS,
        pareto=draw_pareto(result.cells, result.subject.backends),
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


def _draw(
    result: Result, title: str, read: Callable[[Cell], float | None], show: Callable[[float], str], **size: int
) -> str:
    styles = dict(zip(result.subject.backends, ("low", "high"), strict=True))
    lines = [Line(name, style, series(result.cells, name, read)) for name, style in styles.items()]
    axis = axis_from_zero([value for line in lines for _, value in line.points], show)
    return Chart(title, lines, axis, show, _marks(result, are_named=not size), **size).render()


def _draw_ratio(result: Result, ratios: Sequence[Ratio]) -> str:
    if not ratios:
        return ""
    points = [(float(ratio.level), ratio.gain) for ratio in ratios]
    spans = [(float(ratio.level), *ratio.ends) for ratio in ratios if ratio.ends]
    reach = [gain for _, gain in points] + [end for _, *ends in spans for end in ends]
    axis: Axis = axis_of_ratios(reach, result.plan.band)
    title = f"Throughput of {result.subject.low} over {result.subject.high}; within the grey band they are tied"
    lines = [Line("ratio", "ratio", points, spans)]
    return Chart(title, lines, axis, show_ratio, _marks(result), height=280).render()


def _marks(result: Result, are_named: bool = True) -> Marks:
    """Every crossing with every part of its set: where there are several, all of them."""
    changes = result.finding.changes if result.finding else ()
    marks = Marks(
        tuple(change.point for change in changes),
        parts=tuple(part for change in changes for part in change.set),
        are_named=are_named,
    )
    threshold = result.threshold
    return replace(marks, down=threshold.down, up=threshold.up) if threshold else marks
