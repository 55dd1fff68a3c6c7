"""The result of a run, and its folder: runs/accuracy-<id>/ with result.json, items.jsonl and report.md.

In: findings and what they were found on. Out: JSON and files. Knows no endpoint.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import orjson

from engines.accuracy.comparison import Comparison
from engines.accuracy.cost import Cost, Saving
from engines.accuracy.findings import Findings

SCHEMA = 1
Verdict: TypeAlias = Literal["loss", "none found", "ruled out", "undecided"]
EXIT_CODES: Mapping[Verdict, int] = {"none found": 0, "ruled out": 0, "loss": 1, "undecided": 2}


@dataclass(frozen=True, slots=True)
class Subject:
    """One endpoint: its address, its model, and why it returns no log-probabilities, in its own words."""

    place: str
    model: str
    refusal: str
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Tasks:
    """Where the items came from, and a digest by which two runs on the same items are recognized."""

    source: str
    sha256: str
    items: int


@dataclass(frozen=True, slots=True)
class Result:
    run: str
    started_at: str
    duration_s: float
    a: Subject
    b: Subject
    tasks: Tasks
    confidence: float
    must_rule_out: bool
    saving: Saving | None
    findings: Findings

    @property
    def verdict(self) -> Verdict:
        if self.findings.losses:
            return "loss"
        if self.findings.is_ruled_out:
            return "ruled out"
        return "undecided" if self.must_rule_out else "none found"

    def to_json(self) -> dict[str, object]:
        findings = asdict(self.findings)
        findings["judged"] = [asdict(finding) | {"verdict": finding.verdict} for finding in self.findings.judged]
        return {"schema": SCHEMA} | asdict(self) | {"findings": findings, "verdict": self.verdict}


class Folder:
    """A new run's folder, named after the time. Raises OSError if it cannot be written."""

    def __init__(self, parent: Path) -> None:
        self.path = parent / f"accuracy-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self.path.mkdir(parents=True)

    def append(self, one: Comparison) -> None:
        """Appends a comparison as it is finished: an item that was asked is kept however the run ends."""
        with (self.path / "items.jsonl").open("ab") as file:
            file.write(orjson.dumps(one) + b"\n")

    def write(self, result: Result, report: str) -> None:
        with (self.path / "result.json").open("wb") as file:
            file.write(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
            os.fsync(file.fileno())
        (self.path / "report.md").write_text(report)
