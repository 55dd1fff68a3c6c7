"""runs/<id>/ on disk: cells as they finish, the result and its reports at the end."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from loadtest.cell import Cell
from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.result import Result


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's directory; its name is the run's id."""

    path: Path

    @classmethod
    def create(cls, parent: Path) -> "RunFolder":
        """A new one under `parent`. OSError if that cannot be written."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        path = parent / name
        path.mkdir(parents=True)
        return cls(path)

    @property
    def run(self) -> str:
        return self.path.name

    def append(self, cell: Cell) -> None:
        """One line, on disk before the next cell begins: what was measured outlives whatever happens to the run."""
        with (self.path / "cells.jsonl").open("ab") as file:
            file.write(orjson.dumps(cell) + b"\n")

    def write(self, result: Result) -> None:
        document = orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2)
        (self.path / "result.json").write_bytes(document + b"\n")
        (self.path / "report.md").write_text(render_markdown(result))
        (self.path / "report.html").write_text(render_html(result))
