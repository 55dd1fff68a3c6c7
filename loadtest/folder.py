"""runs/<id>/ on disk: what was begun, cells as they finish, the result and its reports at the end."""

import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from loadtest.cell import Cell
from loadtest.engines import Engines
from loadtest.errors import Unreachable
from loadtest.plan import Plan
from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.report.spreadsheet import render_csv
from loadtest.result import Result
from loadtest.stored import parse_result

BEGINNING, CELLS, RESULT, PAGE = "run.json", "cells.jsonl", "result.json", "report.html"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run was to measure, and on what."""

    started_at: datetime
    model: str
    low: str
    high: str
    engines: Engines
    plan: Plan


BEGINNINGS = TypeAdapter(Beginning)
CELL_LINES = TypeAdapter(Cell)


def name_run() -> str:
    """New, and in the order of time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's directory; its name is the run's id."""

    path: Path

    @classmethod
    def create(cls, parent: Path) -> "RunFolder":
        """A new one under `parent`. OSError if that cannot be written."""
        path = parent / name_run()
        path.mkdir(parents=True)
        return cls(path)

    @property
    def run(self) -> str:
        return self.path.name

    @property
    def is_begun(self) -> bool:
        return (self.path / BEGINNING).exists()

    @property
    def is_over(self) -> bool:
        """Whether its result is one that going on would not change. Raises Unreachable as read_result."""
        return (self.path / RESULT).exists() and self.read_result().status not in {"interrupted", "failed"}

    def begin(self, beginning: Beginning) -> None:
        """OSError if it cannot be written."""
        self.path.mkdir(exist_ok=True)
        (self.path / BEGINNING).write_bytes(orjson.dumps(beginning, option=orjson.OPT_INDENT_2) + b"\n")

    def read_beginning(self) -> Beginning:
        """Raises Unreachable if this is no run's folder, or one of another version's."""
        try:
            return BEGINNINGS.validate_json((self.path / BEGINNING).read_bytes())
        except (OSError, ValidationError) as exc:
            raise Unreachable(f"{self.path} is not the folder of a run that can be resumed: {exc}") from exc

    def append(self, cell: Cell) -> None:
        """One line, on disk before the next cell begins: what was measured outlives whatever happens to the run."""
        with (self.path / CELLS).open("ab") as file:
            file.write(orjson.dumps(cell) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def recover(self) -> list[Cell]:
        """The cells that are whole. What a crash left of a line is cut off, so that the next one begins anew.

        Raises Unreachable if a line within is no cell.
        """
        path = self.path / CELLS
        if not path.exists():
            return []
        with path.open("r+b") as file:
            whole, newline, _ = file.read().rpartition(b"\n")
            file.truncate(len(whole) + len(newline))
        try:
            return [CELL_LINES.validate_json(line) for line in whole.splitlines()]
        except ValidationError as exc:
            raise Unreachable(f"{path} holds a line that is no cell of this version's: {exc}") from exc

    def write(self, result: Result) -> None:
        document = orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2)
        (self.path / RESULT).write_bytes(document + b"\n")
        self.write_reports(result)

    def write_reports(self, result: Result) -> None:
        """All that is told of the result and can be told again: report.html, report.md, cells.csv."""
        (self.path / "cells.csv").write_text(render_csv(result.cells, result.plan.known_cost))
        (self.path / "report.md").write_text(render_markdown(result))
        (self.path / PAGE).write_text(render_html(result))

    def read_result(self) -> Result:
        """Raises Unreachable if it has none, or one of another version's."""
        path = self.path / RESULT
        try:
            return parse_result(path.read_bytes())
        except FileNotFoundError as exc:
            raise Unreachable(f"{self.path} {self._describe_lack()}") from exc
        except OSError as exc:
            raise Unreachable(f"cannot read {path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise Unreachable(f"{path}: {exc}") from exc

    def _describe_lack(self) -> str:
        if (self.path / BEGINNING).exists():
            return f"has no {RESULT} yet: that run goes on, or was killed and waits for `crossover calibrate --resume`"
        return f"is not the folder of a run: it has no {RESULT}"
