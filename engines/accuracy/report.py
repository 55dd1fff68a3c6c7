"""report.md and the terminal's tables, from the same words."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from engines.accuracy.result import Result
from engines.accuracy.words import (
    FINDING_HEADINGS,
    SCORE_HEADINGS,
    describe_verdict,
    finding_rows,
    notes,
    score_rows,
)


def render_markdown(result: Result) -> str:
    return "\n".join((*_head(result), *_body(result), ""))


def _head(result: Result) -> Iterator[str]:
    yield f"# {result.run}: {result.verdict}"
    yield ""
    yield f"- A: {result.a.place}, model {result.a.model}"
    yield f"- B: {result.b.place}, model {result.b.model}"
    tasks = result.tasks
    when = f"{result.started_at}, {result.duration_s:.0f} s"
    yield f"- {tasks.items} items of {tasks.source} (sha256 {tasks.sha256[:16]}); {when}"
    yield ""
    yield describe_verdict(result)
    yield ""


def _body(result: Result) -> Iterator[str]:
    yield from _markdown_table(FINDING_HEADINGS, finding_rows(result))
    yield ""
    yield from _markdown_table(SCORE_HEADINGS, score_rows(result))
    yield ""
    for note in notes(result):
        yield f"- {note}"


def _markdown_table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def print_result(console: Console, result: Result) -> None:
    for headings, rows in ((SCORE_HEADINGS, score_rows(result)), (FINDING_HEADINGS, finding_rows(result))):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in notes(result):
        console.print(note, markup=False, highlight=False)
    console.print(describe_verdict(result), markup=False, highlight=False, style="bold")
