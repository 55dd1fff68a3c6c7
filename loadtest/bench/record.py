"""One measurement with what it is of, as a line of results.jsonl."""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from loadtest.bench.client import Measurement


@dataclass(frozen=True, slots=True)
class Record:
    """`complaint`: why it does not count. `extra`: figures that only this scenario has."""

    scenario: str
    system: str
    repeat: int
    complaint: str | None
    measurement: Measurement | None = None
    extra: dict[str, float] = field(default_factory=dict)
    at: float = field(default_factory=time.time)
    load_average: float = field(default_factory=lambda: os.getloadavg()[0])

    def to_line(self) -> bytes:
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Record":
        values = orjson.loads(line)
        if values["measurement"] is not None:
            values["measurement"] = Measurement.from_json(values["measurement"])
        return cls(**values)


def append(path: Path, record: Record) -> None:
    """On disk before the next one begins."""
    with path.open("ab") as file:
        file.write(record.to_line())


def read(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        yield from map(Record.from_line, file)
