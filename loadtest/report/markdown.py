"""report.md: the figures and sentences of report.html as text, for a pull request or a terminal."""

from collections.abc import Iterator, Sequence

from loadtest.report.cell_table import make_table
from loadtest.report.ratios import HEADINGS, make_ratios
from loadtest.report.rerun_command import describe_command
from loadtest.report.text import describe, describe_costs, describe_node, describe_threshold, describe_work
from loadtest.results.result import Result, list_objectives


def render_markdown(result: Result) -> str:
    headings, rows = make_table(result)
    parts = (
        *_head(result),
        f"Throughput of {result.system.low} over {result.system.high}:",
        "",
        *draw_table(HEADINGS, [ratio.fields for ratio in make_ratios(result)], [" ---: "] * 4 + [" --- "]),
        "",
        *draw_table(headings, rows, [" ---: "] * len(headings)),
        "",
        "| check | status | |",
        "| --- | --- | --- |",
        *(f"| {check.name} | {check.status} | {check.message} |" for check in result.checks),
        "",
        f"Measured by: `{describe_command(result)}` (`--url` and operator key as they were)",
        "",
    )
    return "\n".join(parts)


def draw_table(headings: Sequence[str], rows: Sequence[Sequence[str]], rules: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a Markdown table. `rules`: what stands under each heading."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{'|'.join(rules)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _head(result: Result) -> Iterator[str]:
    yield f"# Calibration {result.run}: {result.status}"
    yield ""
    yield f"Model {result.system.model}, {result.system.low} (low load) against {result.system.high} (high load)."
    yield f"{describe_work(result.plan)}; {result.started_at}, {result.duration_s:.0f} s."
    yield ""
    for objective in list_objectives(result.plan):
        yield f"- **{objective.name}**: {describe(objective, result)}"
    yield f"- **threshold**: {describe_threshold(result)}"
    if result.node is not None:
        yield f"- **node model**: {describe_node(result)}"
    yield from (f"- **cost**: {sentence}" for sentence in describe_costs(result))
    yield ""
