"""What a calibration leaves behind: values, and the JSON of result.json. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.cell import Cell
from loadtest.checks import Check
from loadtest.curves import GOODPUT, OBJECTIVES, THROUGHPUT, Objective, make_trials
from loadtest.decide.crossing import Change, Finding, Verdict, find_crossing
from loadtest.decide.estimate import estimate
from loadtest.decide.threshold import Threshold, set_threshold
from loadtest.plan import Plan
from loadtest.regret import Loss
from loadtest.subject import Subject

SCHEMA = "crossover.calibration/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`status`: complete, unresolved (no single threshold), untrusted or regretted (`failure` says why), interrupted.

    `losses`: what the threshold in force cost, where it was tried.
    """

    run: str
    status: str
    started_at: str
    duration_s: float
    client: Mapping[str, str]
    subject: Subject
    plan: Plan
    cells: Sequence[Cell]
    checks: Sequence[Check]
    findings: Mapping[str, Finding]
    threshold: Threshold | None
    failure: str | None = None
    applied: Mapping[str, object] | None = None
    losses: Sequence[Loss] = ()

    @property
    def finding(self) -> Finding | None:
        """By throughput, which the threshold is for; None where the run ended before there was one."""
        return self.findings.get(THROUGHPUT.name)

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
            "crossover": {name: encode_finding(finding) for name, finding in self.findings.items()},
            "threshold": self._encode_threshold(),
            "applied": self.applied,
            "routed": self.losses,
        }

    @property
    def prompt_tokens(self) -> float | None:
        return round(statistics.fmean(cell.prompt_tokens for cell in self.cells), 1) if self.cells else None

    def _encode_threshold(self) -> dict[str, object] | None:
        if self.threshold is None:
            return None
        return {"objective": THROUGHPUT.name, "up": self.threshold.up, "down": self.threshold.down}


def objectives_of(plan: Plan) -> list[Objective]:
    """All, but for goodput where no limits say what is good."""
    return [objective for objective in OBJECTIVES if plan.slo or objective is not GOODPUT]


def find_crossings(cells: Sequence[Cell], subject: Subject, plan: Plan) -> dict[str, Finding]:
    """By every objective; only throughput's becomes a threshold, the others tell what it costs."""
    return {
        objective.name: find_crossing(estimate(make_trials(cells, subject.low, objective)), objective.band or plan.band)
        for objective in objectives_of(plan)
    }


def find_threshold(finding: Finding, plan: Plan) -> Threshold | None:
    """None where there is no single crossing from low to high, or where it might be anywhere in too wide a range."""
    change = finding.change
    if finding.verdict is not Verdict.CROSSING or change is None:
        return None
    if plan.widest is not None and change.spread > plan.widest:
        return None
    return set_threshold(change, plan.margin)


def is_resolved(finding: Finding, threshold: Threshold | None) -> bool:
    """Whether an operator knows what to do: a threshold, or none because one backend serves as well everywhere."""
    return threshold is not None or finding.verdict in {Verdict.ALWAYS_LOW, Verdict.ALWAYS_HIGH, Verdict.TIE}


def encode_finding(finding: Finding) -> dict[str, object]:
    """`point` and `set` of the one crossing; where there are several, each of them in `changes`."""
    one = finding.change
    return {
        "verdict": finding.verdict,
        "point": round(one.point, 2) if one else None,
        "set": _encode_set(one) if one else [],
        "set_is": "95 % confidence",
        "changes": [
            {"point": round(change.point, 2), "set": _encode_set(change), "between": change.flanks}
            for change in finding.changes
        ],
        "doubtful": finding.doubtful,
    }


def _encode_set(change: Change) -> list[list[float]]:
    return [[round(edge, 2) for edge in part] for part in change.set]
