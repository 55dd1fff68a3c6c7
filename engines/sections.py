"""Sections of a report, sentences and a table each, as Markdown and as text for a terminal. Pure; imports nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A title, sentences, and a table whose first row is its headings; sentences and rows may be empty."""

    title: str
    sentences: Sequence[str]
    rows: Sequence[Sequence[str]] = ()


def render_markdown(sections: Sequence[Section]) -> str:
    return "\n".join(line for number, section in enumerate(sections) for line in _render_markdown(section, number))


def _render_markdown(section: Section, number: int) -> Iterator[str]:
    yield from (f"{'##' if number else '#'} {section.title}", "")
    yield from (line for sentence in section.sentences for line in (sentence, ""))
    if section.rows:
        headings, *others = section.rows
        yield f"| {' | '.join(headings)} |"
        yield f"|{' ---: |' * len(headings)}"
        yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in others)
        yield ""


def render_text(sections: Sequence[Section]) -> str:
    """Renders text for a terminal; columns are aligned at their right, as numbers are."""
    return "\n".join(line for section in sections for line in _render_text(section))


def _render_text(section: Section) -> Iterator[str]:
    yield from (section.title, *section.sentences, "")
    if section.rows:
        widths = [max(map(len, column)) for column in zip(*section.rows, strict=True)]
        yield from ("  ".join(map(str.rjust, row, widths)) for row in section.rows)
        yield ""
