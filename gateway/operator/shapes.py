"""The JSON of the operator's routes: pydantic models, and how routing's values become them."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, Field

from gateway.routing import BackendState, ModelState, PolicyChange, PolicyRecord, WorkerState
from gateway.settings import PolicySection

Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


class PolicyBody(PolicySection):
    """A policy as in crossover.yaml, and what the change is about. What GET /admin/policy answers may be sent back.

    `model`: needed when there are several. `calibration`: the run the thresholds come from. `by`: who changes it, by
    default the caller's address. `version`: the one to replace; if another is in force by then, the answer is 409.
    """

    model: Text | None = None
    calibration: Text | None = None
    by: Text | None = None
    version: int | None = None

    def change(self, caller: str) -> PolicyChange:
        return PolicyChange(
            policy=self.slice(),
            by=self.by or caller,
            model=self.model,
            calibration=self.calibration,
            version=self.version,
        )


class PolicyView(BaseModel):
    """The policy in force. Of kind `single` (one backend, nothing to choose) it has no thresholds."""

    model: str
    kind: str
    low: str | None = None
    high: str | None = None
    up: int | None = None
    down: int | None = None
    dwell_s: float | None = None
    calibration: str | None
    by: str
    version: int

    @classmethod
    def of(cls, model: str, record: PolicyRecord) -> Self:
        view = cls(model=model, kind="single", calibration=record.calibration, by=record.by, version=record.version)
        if (policy := record.policy) is None:
            return view
        thresholds = {key: getattr(policy, key) for key in ("kind", "low", "high", "up", "down", "dwell_s")}
        return view.model_copy(update=thresholds)


class PolicyEntry(PolicyView):
    """One entry of the history: a policy and since when it was in force."""

    at: datetime

    @classmethod
    def at_its_time(cls, model: str, record: PolicyRecord) -> Self:
        at = datetime.fromtimestamp(record.at, UTC)
        return cls(**PolicyView.of(model, record).model_dump(), at=at)


class BackendView(BaseModel):
    ready: bool
    in_flight: int
    steering: int

    @classmethod
    def of(cls, backend: BackendState) -> Self:
        return cls(ready=backend.is_ready, in_flight=backend.in_flight, steering=backend.steering)


class ModelView(BaseModel):
    """One model now. `in_flight` counts every lease, `steering` those the policy goes by; history is oldest first."""

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
    def of(cls, state: ModelState) -> Self:
        backends = {name: BackendView.of(backend) for name, backend in state.backends.items()}
        return cls(
            model=state.model,
            in_flight=sum(backend.in_flight for backend in backends.values()),
            steering=sum(backend.steering for backend in backends.values()),
            side=state.side,
            side_age_s=round(state.side_age_s, 3),
            switches=state.switches,
            backends=backends,
            policy=PolicyView.of(state.model, state.current),
            history=[PolicyEntry.at_its_time(state.model, record) for record in state.history],
        )


class WorkerView(BaseModel):
    """A worker process, since when it runs, and how many requests of all models it has in flight."""

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
