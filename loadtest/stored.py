"""result.json read back: the same Result that was written, so that its reports and comparisons need nothing else.

In: bytes. Out: a Result. ValueError says what it is instead, or which field is wrong. Knows no folder.
"""

from collections.abc import Mapping

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from loadtest.cell import Cell
from loadtest.checks import Check
from loadtest.decide.crossing import Change, Finding, Verdict
from loadtest.decide.threshold import Threshold
from loadtest.engines import Engines
from loadtest.plan import Plan
from loadtest.regret import Loss
from loadtest.result import SCHEMA, Result
from loadtest.subject import Subject

Json = Mapping[str, JsonValue]


@checked(frozen=True, slots=True)
class _Change:
    point: float
    set: tuple[tuple[float, float], ...]
    between: tuple[int, int]


@checked(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    changes: tuple[_Change, ...]
    doubtful: tuple[int, ...]


@checked(frozen=True, slots=True)
class _Threshold:
    up: int
    down: int


@checked(frozen=True, slots=True)
class _Fingerprint:
    gateway: Json
    client: Mapping[str, str]
    policy: Json
    model: str
    low: str
    high: str
    engines: Engines


@checked(frozen=True, slots=True, kw_only=True)
class _Document:
    """What Result.to_json writes, less what it derives from the rest."""

    run: str
    status: str
    failure: str | None
    started_at: str
    duration_s: float
    fingerprint: _Fingerprint
    plan: Plan
    cells: tuple[Cell, ...]
    checks: tuple[Check, ...]
    crossover: Mapping[str, _Finding]
    threshold: _Threshold | None
    applied: Json | None
    routed: tuple[Loss, ...] = ()  # runs of earlier versions have none


@checked(frozen=True, slots=True)
class _Header:
    schema: str


DOCUMENTS, HEADERS = TypeAdapter(_Document), TypeAdapter(_Header)


def parse_result(text: bytes) -> Result:
    """ValueError if that is no result of this version's schema."""
    try:
        schema = HEADERS.validate_json(text).schema
    except ValidationError as exc:
        raise ValueError("it is no result of a calibration") from exc
    if schema != SCHEMA:
        raise ValueError(f"its schema is {schema}, this version reads {SCHEMA}")
    try:
        return _make_result(DOCUMENTS.validate_json(text))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{', '.join(map(str, first['loc']))}: {first['msg']}") from exc


def _make_result(document: _Document) -> Result:
    told, threshold = document.fingerprint, document.threshold
    return Result(
        run=document.run,
        status=document.status,
        started_at=document.started_at,
        duration_s=document.duration_s,
        client=told.client,
        subject=Subject(told.model, told.low, told.high, told.policy, told.gateway, told.engines),
        plan=document.plan,
        cells=document.cells,
        checks=document.checks,
        findings={name: _make_finding(finding) for name, finding in document.crossover.items()},
        threshold=Threshold(threshold.up, threshold.down) if threshold else None,
        failure=document.failure,
        applied=document.applied,
        losses=document.routed,
    )


def _make_finding(finding: _Finding) -> Finding:
    changes = tuple(Change(change.point, change.set, change.between) for change in finding.changes)
    return Finding(finding.verdict, changes, finding.doubtful)
