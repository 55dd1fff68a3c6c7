"""runs/bench-<time>/ on disk: records as they come, their circumstances, and the report made from both."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from loadtest.lab.figures import plot, report
from loadtest.lab.figures.claims import claims
from loadtest.lab.figures.measurement import Record, parse_record
from loadtest.lab.figures.summary import Summary
from loadtest.mock_engine.process import CannotMeasure

RESULTS, ABOUT = "results.jsonl", "run.json"
_ABOUT = TypeAdapter(report.About)


@dataclass(frozen=True, slots=True)
class BenchFolder:
    """One run's directory."""

    path: Path

    @classmethod
    def create(cls, parent: Path) -> "BenchFolder":
        path = parent / f"bench-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        path.mkdir(parents=True)
        return cls(path)

    def append(self, record: Record) -> None:
        """Writes the record to disk, before the next measurement begins."""
        with (self.path / RESULTS).open("ab") as file:
            file.write(record.to_line())

    def write_about(self, about: report.About) -> None:
        (self.path / ABOUT).write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2))

    def read(self) -> report.Run:
        """Reads everything measured so far. Raises CannotMeasure if this is no run's folder."""
        try:
            about = _ABOUT.validate_json((self.path / ABOUT).read_bytes())
            results = self.path / RESULTS
            records = list(map(parse_record, results.read_bytes().splitlines())) if results.exists() else []
        except (OSError, ValueError) as exc:
            raise CannotMeasure(f"{self.path} is not the folder of a run: {exc}") from exc
        return report.Run(Summary.of(records), tuple(claims()), about, Summary.of_each_repeat(records))

    def write_report(self, run: report.Run) -> None:
        drawing = plot.render(run.summary)
        (self.path / "report.md").write_text(report.render(run, "report.svg" if drawing else None))
        (self.path / "report.svg").write_text(drawing)
