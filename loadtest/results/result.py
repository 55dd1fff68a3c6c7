"""The result of a calibration: values, the JSON of result.json, and the same values read back from it. Pure.

In: findings, or bytes. Out: a Result, or a ValueError that names what is wrong with the bytes.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from pydantic import TypeAdapter, ValidationError

from loadtest.decide.crossing import Change, Finding, Verdict, find_crossing
from loadtest.decide.estimate import estimate
from loadtest.decide.regret import Regret
from loadtest.decide.soundness import Check
from loadtest.decide.threshold import Threshold, set_threshold
from loadtest.results.cell import Cell
from loadtest.results.curves import GOODPUT, OBJECTIVES, THROUGHPUT, Objective, make_trials
from loadtest.results.node import NodeCells, NodeModel, OpenCell
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest

SCHEMA = "crossover.calibration/1"
OLD_NODE = "the run's node model has an earlier version's form, and is left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`status`: complete, unresolved (no single threshold), untrusted, regretted or failed (`failure` reports why), or
    interrupted. `node`: what a policy that predicts has to know. `node_cells`: what it was fitted to. `open_loop`: what
    checks it. `rehearsed`: how a changing load was served, by arm, where a policy was set.
    """

    run: str
    status: str
    started_at: str
    duration_s: float
    client: Mapping[str, str]
    system: SystemUnderTest
    plan: Plan
    cells: Sequence[Cell]
    checks: Sequence[Check]
    findings: Mapping[str, Finding]
    threshold: Threshold | None
    node: NodeModel | None = None
    failure: str | None = None
    applied: Mapping[str, object] | None = None
    node_cells: NodeCells = field(default_factory=dict)
    open_loop: Sequence[OpenCell] = ()
    rehearsed: Mapping[str, Regret] = field(default_factory=dict)

    @property
    def finding(self) -> Finding | None:
        """The finding by throughput, which the threshold is for; None where the run ended before there was one."""
        return self.findings.get(THROUGHPUT.name)

    @property
    def prompt_tokens(self) -> float | None:
        return round(statistics.fmean(cell.prompt_tokens for cell in self.cells), 1) if self.cells else None

    def to_json(self) -> dict[str, object]:
        system, threshold = self.system, self.threshold
        return {
            "schema": SCHEMA,
            "run": self.run,
            "status": self.status,
            "failure": self.failure,
            "started_at": self.started_at,
            "duration_s": round(self.duration_s, 1),
            "shape": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.plan.tokens},
            "fingerprint": {"gateway": system.gateway, "client": self.client, "policy": system.policy}
            | {"model": system.model, "low": system.low, "high": system.high, "engines": system.engines},
            "plan": self.plan,
            "cells": self.cells,
            "checks": self.checks,
            "crossover": {name: encode_finding(finding) for name, finding in self.findings.items()},
            "threshold": {"objective": THROUGHPUT.name, "up": threshold.up, "down": threshold.down}
            if threshold
            else None,
            "node": self.node,
            "node_cells": self.node_cells,
            "open_loop": self.open_loop,
            "applied": self.applied,
            "rehearsed": self.rehearsed,
        }


def list_objectives(plan: Plan) -> list[Objective]:
    """Lists all objectives, except goodput where no SLO defines it."""
    return [objective for objective in OBJECTIVES if plan.slo or objective is not GOODPUT]


def find_crossings(cells: Sequence[Cell], system: SystemUnderTest, plan: Plan) -> dict[str, Finding]:
    """Finds crossings by every objective. Only throughput's becomes a threshold; the others show what that costs."""
    return {
        objective.name: find_crossing(estimate(make_trials(cells, system.low, objective)), objective.band or plan.band)
        for objective in list_objectives(plan)
    }


def find_change(findings: Mapping[str, Finding]) -> Change | None:
    """Returns the one crossing that the node is measured at: by throughput, or else by whole answers, or by tokens."""
    found = [findings[name].change for name in (THROUGHPUT.name, "e2e_p50", "tpot_p50")]
    return next((change for change in found if change is not None), None)


def find_threshold(finding: Finding, plan: Plan) -> Threshold | None:
    """Sets a threshold; None where there is no single crossing from low to high, or its place is known too vaguely."""
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
    """Encodes a finding: `point` and `set` of the crossing if there is only one, and all crossings in `changes`."""
    one = _encode_change(finding.change) if finding.change else {"point": None, "set": []}
    return {
        "verdict": finding.verdict,
        "point": one["point"],
        "set": one["set"],
        "set_is": "95 % confidence",
        "changes": [_encode_change(change) for change in finding.changes],
        "doubtful": finding.doubtful,
    }


def _encode_change(change: Change) -> dict[str, object]:
    parts = [[round(edge, 2) for edge in part] for part in change.set]
    return {"point": round(change.point, 2), "set": parts, "between": change.between}


_RESULTS = TypeAdapter(Result)


def parse_result(text: bytes) -> Result:
    """Parses the JSON of `Result.to_json`. Raises ValueError if that is no result of this version's schema."""
    try:
        document = orjson.loads(text)
        schema = document["schema"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ValueError("it is no result of a calibration") from exc
    if schema != SCHEMA:
        raise ValueError(f"its schema is {schema}, this version reads {SCHEMA}")
    fingerprint = document.get("fingerprint")
    client = fingerprint.get("client") if isinstance(fingerprint, dict) else None
    moved = {"system": fingerprint, "client": client, "findings": document.get("crossover")}
    if _is_old(document.get("node")):
        checks = [*document.get("checks", ()), {"name": "node model", "status": "note", "message": OLD_NODE}]
        moved |= {"node": None, "open_loop": [], "checks": checks}
    try:
        return _RESULTS.validate_python(document | moved)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{', '.join(map(str, first['loc']))}: {first['msg']}") from exc


def _is_old(node: object) -> bool:
    """Whether it is a node model of versions that had one speed of prefill for each engine."""
    low = node.get("low") if isinstance(node, dict) else None
    return isinstance(low, dict) and "prefill_tokens_per_s" in low
