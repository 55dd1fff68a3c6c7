"""runs/<id>/ on disk: the plan that the run began with, cells as they finish, the result at the end."""

import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from loadtest.client.errors import Unreachable
from loadtest.results.cell import Cell
from loadtest.results.plan import Plan
from loadtest.results.result import Result, parse_result
from loadtest.results.system import Engines

T = TypeVar("T")
BEGINNING, CELLS, RESULT = "run.json", "cells.jsonl", "result.json"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run is going to measure, and on which engines."""

    started_at: datetime
    model: str
    low: str
    high: str
    engines: Engines
    plan: Plan


_BEGINNINGS, _CELLS = TypeAdapter(Beginning), TypeAdapter(Cell)


def name_run() -> str:
    """Makes a new name. Names sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def read_to_resume(path: Path, adapter: TypeAdapter[T]) -> T:
    """Reads a file of a run to resume. Raises Unreachable if it is missing, or of another version."""
    try:
        return adapter.validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise Unreachable(f"{path.parent} is not the folder of a run that can be resumed: {exc}") from exc


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's directory; its name is the run's id."""

    path: Path

    @classmethod
    def create(cls, parent: Path) -> "RunFolder":
        """Creates a new folder under `parent`. Raises OSError if that cannot be written."""
        path = parent / name_run()
        path.mkdir(parents=True)
        return cls(path)

    @property
    def run(self) -> str:
        return self.path.name

    @property
    def has_begun(self) -> bool:
        return (self.path / BEGINNING).exists()

    @property
    def is_final(self) -> bool:
        """Whether it has a result that resuming would not change. Raises Unreachable as `read_result` does."""
        return (self.path / RESULT).exists() and self.read_result().status not in {"interrupted", "failed"}

    def begin(self, beginning: Beginning) -> None:
        """Writes the run's beginning. Raises OSError if it cannot be written."""
        self.path.mkdir(exist_ok=True)
        (self.path / BEGINNING).write_bytes(orjson.dumps(beginning, option=orjson.OPT_INDENT_2) + b"\n")

    def read_beginning(self) -> Beginning:
        """Reads the run's beginning. Raises Unreachable if this is no run's folder, or one of another version."""
        return read_to_resume(self.path / BEGINNING, _BEGINNINGS)

    def append(self, cell: Cell) -> None:
        """Writes a line, on disk before the next cell begins: a finished cell survives whatever happens to the run."""
        with (self.path / CELLS).open("ab") as file:
            file.write(orjson.dumps(cell) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def recover(self) -> list[Cell]:
        """Reads the complete lines as cells. An incomplete last line, which a crash left, is cut off the file.

        Raises Unreachable if a complete line is no cell.
        """
        path = self.path / CELLS
        if not path.exists():
            return []
        with path.open("r+b") as file:
            lines, newline, _ = file.read().rpartition(b"\n")
            file.truncate(len(lines) + len(newline))
        try:
            return [_CELLS.validate_json(line) for line in lines.splitlines()]
        except ValidationError as exc:
            raise Unreachable(f"{path} holds a line that is no cell of this version's: {exc}") from exc

    def write_result(self, result: Result) -> None:
        document = orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2)
        (self.path / RESULT).write_bytes(document + b"\n")

    def read_result(self) -> Result:
        """Reads the result. Raises Unreachable if there is none, or one of another version."""
        path = self.path / RESULT
        try:
            return parse_result(path.read_bytes())
        except FileNotFoundError as exc:
            raise Unreachable(f"{self.path} {self._describe_missing_result()}") from exc
        except OSError as exc:
            raise Unreachable(f"cannot read {path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise Unreachable(f"{path}: {exc}") from exc

    def _describe_missing_result(self) -> str:
        if self.has_begun:
            return f"has no {RESULT} yet: that run goes on, or was killed and waits for `crossover calibrate --resume`"
        return f"is not the folder of a run: it has no {RESULT}"
