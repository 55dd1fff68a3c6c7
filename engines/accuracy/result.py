"""What a run found, and its folder: runs/accuracy-<id>/ with result.json, items.jsonl and report.md.

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

from engines.accuracy.cost import Cost, Saving
from engines.accuracy.examine import Compared
from engines.accuracy.findings import Findings

SCHEMA = 1
Verdict: TypeAlias = Literal["loss", "none found", "ruled out", "undecided"]
EXIT_CODES: Mapping[Verdict, int] = {"none found": 0, "ruled out": 0, "loss": 1, "undecided": 2}


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the two: where it was asked, as what model, and what it does not tell, in its own words."""

    place: str
    model: str
    refusal: str
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Tasks:
    """Where the items came from, and a digest, so that two runs on the same items are known for it."""

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


def name_run() -> str:
    """New, and in the order of time."""
    return f"accuracy-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


class Folder:
    """One run's. OSError if it cannot be written."""

    def __init__(self, parent: Path, run: str) -> None:
        self.path = parent / run
        self.path.mkdir(parents=True)

    @property
    def run(self) -> str:
        return self.path.name

    def append(self, one: Compared) -> None:
        """As it is finished: what was asked is kept, whatever happens to the run."""
        with (self.path / "items.jsonl").open("ab") as file:
            file.write(orjson.dumps(one) + b"\n")

    def write(self, result: Result, report: str) -> None:
        with (self.path / "result.json").open("wb") as file:
            file.write(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
            os.fsync(file.fileno())
        (self.path / "report.md").write_text(report)
