"""The JSON of the operator's routes: pydantic models, and how routing's values become them."""

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeAlias

import orjson
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from gateway.core import Need
from gateway.evidence import Board, Change, Evidence, Place
from gateway.routing import BackendState, ModelState, PolicyChange, PolicyRecord, WorkerState
from gateway.settings import Name, PolicySection

MAX_FINGERPRINT_BYTES = 2048  # the last hundred policies share a memory of fixed size


def _check_fingerprint(fingerprint: Mapping[str, Mapping[str, str | int]]) -> Mapping[str, Mapping[str, str | int]]:
    if len(orjson.dumps(fingerprint)) > MAX_FINGERPRINT_BYTES:
        raise PydanticCustomError("crossover", "is longer than {limit} bytes", {"limit": MAX_FINGERPRINT_BYTES})
    return fingerprint


Fingerprint: TypeAlias = Annotated[dict[Name, dict[str, str | int]], AfterValidator(_check_fingerprint)]
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


class PolicyBody(PolicySection):
    """A policy as in crossover.yaml, and what the change is about. What GET /admin/policy answers may be sent back.

    `model`: needed when there are several. `calibration`: the run the thresholds come from. `by`: who changes it, by
    default the caller's address. `version`: the one to replace; if another is in force by then, the answer is 409.
    `fingerprint`: of the engines it was measured on. `stale` is of an answer and means nothing here.
    """

    model: Text | None = None
    calibration: Text | None = None
    fingerprint: Fingerprint | None = None
    by: Text | None = None
    version: int | None = None
    stale: object = None

    def change(self, caller: str) -> PolicyChange:
        return PolicyChange(
            policy=self.slice(),
            by=self.by or caller,
            model=self.model,
            calibration=self.calibration,
            fingerprint=self.fingerprint,
            version=self.version,
        )


class PolicyFields(BaseModel):
    """A policy and where it comes from; null is what its kind does not have.

    Of kind `single` (one backend, nothing to choose) it has nothing of its own.
    """

    model: str
    kind: str
    low: str | None = None
    high: str | None = None
    up: int | None = None
    down: int | None = None
    dwell_s: float | None = None
    share: float | None = None
    calibration: str | None
    fingerprint: dict[str, dict[str, str | int]] | None
    by: str
    version: int


class ChangeView(BaseModel):
    """What is no longer as it was when the policy was measured."""

    backend: str
    field: str
    old: str | int
    new: str | int

    @classmethod
    def of(cls, change: Change) -> Self:
        return cls(**change._asdict())


class PolicyView(PolicyFields):
    """The policy in force; `stale` tells how the engines differ from those it was measured on."""

    stale: list[ChangeView]

    @classmethod
    def of(cls, model: str, record: PolicyRecord, board: Board) -> Self:
        changes = board.find_changes(model, record.fingerprint)
        return cls(**_describe(model, record), stale=[ChangeView.of(change) for change in changes])


class PolicyEntry(PolicyFields):
    """One entry of the history: a policy and since when it was in force."""

    at: datetime

    @classmethod
    def at_its_time(cls, model: str, record: PolicyRecord) -> Self:
        return cls(**_describe(model, record), at=datetime.fromtimestamp(record.at, UTC))


def _describe(model: str, record: PolicyRecord) -> dict[str, Any]:  # Any: PolicyFields' own fields, by name
    keys = ("kind", "low", "high", "up", "down", "dwell_s", "share")
    own = {key: getattr(record.policy, key, None) for key in keys} if record.policy else {"kind": "single"}
    origin = {key: getattr(record, key) for key in ("calibration", "fingerprint", "by", "version")}
    return {"model": model, **own, **origin}


class BackendView(BaseModel):
    """`in_flight` and `steering` are now's. What the engine says is as old as `evidence_age_s`; null is unknown.

    `capabilities`: the needs it can meet, as far as it has been asked. `engine_in_flight`: how many it held then.
    `drift`: how many more than it had been sent by then.
    """

    ready: bool
    in_flight: int
    steering: int
    capabilities: list[Need]
    engine_in_flight: int | None
    drift: int | None
    steady_drift: int | None
    evidence_age_s: float | None

    @classmethod
    def of(cls, backend: BackendState, evidence: Evidence) -> Self:
        return cls(
            ready=backend.is_ready,
            in_flight=backend.in_flight,
            steering=backend.steering,
            capabilities=sorted(backend.capabilities),
            engine_in_flight=evidence.in_flight,
            drift=evidence.drift,
            steady_drift=evidence.steady_drift,
            evidence_age_s=None if evidence.read_at is None else round(time.monotonic() - evidence.read_at, 3),
        )


class ModelView(BaseModel):
    """One model now. `in_flight` counts all generations, `steering` those the policy goes by. Oldest history first."""

    model: str
    in_flight: int
    steering: int
    side: str
    side_age_s: float
    switches: int
    backends: dict[str, BackendView]
    policy: PolicyView
    history: list[PolicyEntry]

    @classmethod
    def of(cls, state: ModelState, board: Board) -> Self:
        backends = {
            name: BackendView.of(backend, board.read(Place(state.model, name)))
            for name, backend in state.backends.items()
        }
        return cls(
            model=state.model,
            in_flight=sum(backend.in_flight for backend in backends.values()),
            steering=sum(backend.steering for backend in backends.values()),
            side=state.side,
            side_age_s=round(state.side_age_s, 3),
            switches=state.switches,
            backends=backends,
            policy=PolicyView.of(state.model, state.current, board),
            history=[PolicyEntry.at_its_time(state.model, record) for record in state.history],
        )


class WorkerView(BaseModel):
    """A worker process, since when it runs, and how many generations of all models it has in flight."""

    index: int
    pid: int
    started: datetime
    in_flight: int

    @classmethod
    def of(cls, worker: WorkerState) -> Self:
        started = datetime.fromtimestamp(worker.started, UTC)
        return cls(index=worker.index, pid=worker.pid, started=started, in_flight=worker.in_flight)


class StateView(BaseModel):
    """`answered_by`: the index of the worker that was asked; the rest is the same whichever it is."""

    version: str
    answered_by: int
    workers: list[WorkerView]
    models: list[ModelView]


class VersionView(BaseModel):
    """The gateway's version; and by model and backend what each engine says of itself, null what it does not.

    `is_compiled`: the gateway's modules that every token passes are compiled (docs/decisions/0016).
    """

    version: str
    is_compiled: bool
    models: dict[str, dict[str, dict[str, str | int | None]]]

    @classmethod
    def of(cls, version: str, is_compiled: bool, states: Collection[ModelState], board: Board) -> Self:
        models = {
            state.model: {
                name: {"engine": None, "version": None, **board.read(Place(state.model, name)).identity}
                for name in state.backends
            }
            for state in states
        }
        return cls(version=version, is_compiled=is_compiled, models=models)


class ReadyView(BaseModel):
    """`not_ready`: the models that no backend can answer for. `models`: backend by backend."""

    status: Literal["ready", "not ready"]
    not_ready: list[str]
    models: dict[str, dict[str, bool]]

    @classmethod
    def of(cls, states: Collection[ModelState]) -> Self:
        models = {state.model: {name: backend.is_ready for name, backend in state.backends.items()} for state in states}
        not_ready = [state.model for state in states if not state.is_ready]
        return cls(status="not ready" if not_ready else "ready", not_ready=not_ready, models=models)
