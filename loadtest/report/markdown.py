"""report.md: the same figures and sentences as text, for a pull request or a terminal."""

from collections.abc import Iterator

from loadtest.report.command import describe_command
from loadtest.report.cost import describe_costs
from loadtest.report.ratios import HEADINGS, make_ratios
from loadtest.report.table import make_table
from loadtest.report.words import describe, describe_threshold, describe_work
from loadtest.result import Result, objectives_of


def render_markdown(result: Result) -> str:
    return "\n".join((*_head(result), *_ratios(result), *_table(result), *_foot(result), ""))


def _head(result: Result) -> Iterator[str]:
    yield f"# Calibration {result.run}: {result.status}"
    yield ""
    yield f"Model {result.subject.model}, {result.subject.low} (low load) against {result.subject.high} (high load)."
    yield f"{describe_work(result.plan)}; {result.started_at}, {result.duration_s:.0f} s."
    yield ""
    for objective in objectives_of(result.plan):
        yield f"- **{objective.name}**: {describe(objective, result)}"
    yield f"- **threshold**: {describe_threshold(result)}"
    yield from (f"- **cost**: {sentence}" for sentence in describe_costs(result))
    yield ""


def _ratios(result: Result) -> Iterator[str]:
    yield f"Throughput of {result.subject.low} over {result.subject.high}:"
    yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{' ---: |' * (len(HEADINGS) - 1)} --- |"
    for ratio in make_ratios(result):
        yield f"| {' | '.join(ratio.fields)} |"
    yield ""


def _table(result: Result) -> Iterator[str]:
    table = make_table(result)
    yield f"| {' | '.join(table.headings)} |"
    yield f"|{' ---: |' * len(table.headings)}"
    for row in table.rows:
        yield f"| {' | '.join(row.fields)} |"
    yield ""


def _foot(result: Result) -> Iterator[str]:
    yield "| check | status | |"
    yield "| --- | --- | --- |"
    for check in result.checks:
        yield f"| {check.name} | {check.status} | {check.message} |"
    yield ""
    yield f"Measured by: `{describe_command(result)}` (`--url` and operator key as they were)"
