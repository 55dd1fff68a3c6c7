"""runs/bench-<time>/ on disk: results as they come, what they are of, and the report made from both."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from loadtest.bench import plot, record, report
from loadtest.bench.claims import claims
from loadtest.bench.errors import BenchError
from loadtest.bench.machine import Machine
from loadtest.bench.record import Record
from loadtest.bench.summary import Summary

RESULTS, ABOUT = "results.jsonl", "run.json"


@dataclass(frozen=True, slots=True)
class BenchFolder:
    """One run's directory."""

    path: Path

    @classmethod
    def create(cls, parent: Path) -> "BenchFolder":
        path = parent / f"bench-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        path.mkdir(parents=True)
        return cls(path)

    def append(self, measured: Record) -> None:
        record.append(self.path / RESULTS, measured)

    def write_about(self, about: report.About) -> None:
        (self.path / ABOUT).write_bytes(orjson.dumps(asdict(about), option=orjson.OPT_INDENT_2))

    def read(self) -> report.Run:
        """Everything measured so far. Raises BenchError if this is no run's folder."""
        try:
            values: dict[str, Any] = orjson.loads((self.path / ABOUT).read_bytes())  # Any: JSON
            about = report.About(**{**values, "machine": Machine(**values["machine"])})
            records = list(record.read(self.path / RESULTS)) if (self.path / RESULTS).exists() else []
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise BenchError(f"{self.path} is not the folder of a run: {exc}") from exc
        return report.Run(Summary.of(records), tuple(claims()), about, Summary.of_each_repeat(records))

    def write_report(self, run: report.Run) -> None:
        drawing = plot.render(run.summary)
        (self.path / "report.md").write_text(report.render(run, "report.svg" if drawing else None))
        (self.path / "report.svg").write_text(drawing)


def write_docs(docs: Path, run: report.Run) -> None:
    """Into performance.md, whose own words are kept from one run to the next."""
    page, drawing = docs / "performance.md", plot.render(run.summary)
    text = report.render(run, "performance.svg" if drawing else None)
    page.write_text(report.replace_results(page.read_text(), text))
    (docs / "performance.svg").write_text(drawing)
