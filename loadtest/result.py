"""What a calibration leaves behind: values, and the JSON of result.json. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.cell import Cell
from loadtest.checks import Check
from loadtest.crossing import Crossover, Threshold, Verdict, find_crossover, set_threshold
from loadtest.curves import OBJECTIVES, THROUGHPUT, points
from loadtest.plan import Plan
from loadtest.subject import Subject

SCHEMA = "crossover.calibration/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`status`: complete, unresolved (no single threshold), untrusted (`failure` says why) or interrupted."""

    run: str
    status: str
    started_at: str
    duration_s: float
    client: Mapping[str, str]
    subject: Subject
    plan: Plan
    cells: Sequence[Cell]
    checks: Sequence[Check]
    crossovers: Mapping[str, Crossover]
    threshold: Threshold | None
    failure: str | None = None
    applied: Mapping[str, object] | None = None

    @property
    def crossover(self) -> Crossover | None:
        """By throughput, which the threshold is for; None where the run ended before there was one."""
        return self.crossovers.get(THROUGHPUT.name)

    def to_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "run": self.run,
            "status": self.status,
            "failure": self.failure,
            "started_at": self.started_at,
            "duration_s": round(self.duration_s, 1),
            "shape": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.plan.tokens},
            "fingerprint": {"gateway": self.subject.gateway, "client": self.client, "policy": self.subject.policy}
            | {"model": self.subject.model, "low": self.subject.low, "high": self.subject.high}
            | {"engines": self.subject.engines},
            "plan": self.plan,
            "cells": self.cells,
            "checks": self.checks,
            "crossover": {name: _encode(crossover) for name, crossover in self.crossovers.items()},
            "threshold": self._encode_threshold(),
            "applied": self.applied,
        }

    @property
    def prompt_tokens(self) -> float | None:
        return round(statistics.fmean(cell.prompt_tokens for cell in self.cells), 1) if self.cells else None

    def _encode_threshold(self) -> dict[str, object] | None:
        if self.threshold is None:
            return None
        return {"objective": THROUGHPUT.name, "up": self.threshold.up, "down": self.threshold.down}


def find_crossovers(cells: Sequence[Cell], subject: Subject, plan: Plan) -> dict[str, Crossover]:
    """By every objective; only throughput's becomes a threshold, the others tell what it costs."""
    return {
        objective.name: find_crossover(points(cells, subject.low, objective), objective.band or plan.band)
        for objective in OBJECTIVES
    }


def find_threshold(crossover: Crossover, plan: Plan) -> Threshold | None:
    if crossover.verdict is not Verdict.CROSSING or crossover.point is None:
        return None
    return set_threshold(crossover.point, plan.margin)


def _encode(crossover: Crossover) -> dict[str, object]:
    """`set` is the tie zone around the point: where the backends differ by less than the band."""
    return {
        "verdict": crossover.verdict,
        "point": crossover.point and round(crossover.point, 2),
        "set": [[round(edge, 2) for edge in crossover.tie_zone]] if crossover.tie_zone else [],
        "set_is": "tie zone",
    }
