"""The JSON of the operator's routes: pydantic models, and how routing's values become them."""

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeAlias

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from gateway.access import Key, Limits, Meter, Scope, Use
from gateway.core import Need, Policy
from gateway.evidence import Evidence, LatestEvidence, Place
from gateway.routing import BackendState, DryState, ModelState, PolicyChange, PolicyRecord
from gateway.routing.policies import KEYS, SCHEMAS, Single, read_policy
from gateway.settings import Name

OF_VALUES = ConfigDict(from_attributes=True)  # of a view that has the fields of another room's value
MAX_FINGERPRINT_BYTES = 2048  # the last hundred policies share a memory of fixed size


def _check_fingerprint(fingerprint: Mapping[str, Mapping[str, str | int]]) -> Mapping[str, Mapping[str, str | int]]:
    if len(orjson.dumps(fingerprint)) > MAX_FINGERPRINT_BYTES:
        raise PydanticCustomError("crossover", "is longer than {limit} bytes", {"limit": MAX_FINGERPRINT_BYTES})
    return fingerprint


Fingerprint: TypeAlias = Annotated[dict[Name, dict[str, str | int]], AfterValidator(_check_fingerprint)]
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


def _show_keys(schema: dict[str, Any]) -> None:  # Any: a JSON schema
    schema["properties"] |= {"kind": {"enum": [*SCHEMAS], "type": "string"}, **KEYS}


class PolicyBody(BaseModel):
    """A policy as in crossover.yaml, and where the change comes from. What GET /admin/policy answers may be sent back.

    `model`: needed when there are several. `calibration`: the run that measured the policy. `by`: who changes it, by
    default the caller's address. `version`: the one to replace; if another is in force by then, the answer is 409.
    `fingerprint`: that of the engines it was measured on. `stale` belongs to an answer and has no effect here.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, json_schema_extra=_show_keys)

    model: Text | None = None
    calibration: Text | None = None
    fingerprint: Fingerprint | None = None
    by: Text | None = None
    version: int | None = None
    stale: object = None

    _policy: Policy = PrivateAttr()

    @model_validator(mode="after")
    def _read_policy(self) -> Self:
        self._policy = read_policy(self.model_extra)
        return self

    def change(self, caller: str) -> PolicyChange:
        origin = {key: getattr(self, key) for key in ("model", "calibration", "fingerprint", "version")}
        return PolicyChange(self._policy, self.by or caller, **origin)


class PolicyFields(BaseModel):
    """A policy and where it comes from; beside these the keys of all policies, null where its kind has no such key.

    A policy of kind `single` (one backend, nothing to choose) has none of them.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_show_keys)

    model: str
    kind: str
    calibration: str | None
    fingerprint: dict[str, dict[str, str | int]] | None
    by: str
    version: int


class ChangeView(BaseModel):
    """One field of an engine's identity that has changed since the policy was measured; an evidence.Change."""

    model_config = OF_VALUES

    backend: str
    field: str
    old: str | int
    new: str | int


class PolicyView(PolicyFields):
    """The policy in force; `stale`: how the engines differ from those it was measured on."""

    stale: list[ChangeView]

    @classmethod
    def of(cls, model: str, record: PolicyRecord, latest: LatestEvidence) -> Self:
        changes = latest.find_changes(model, record.fingerprint)
        return cls(**_describe(model, record), stale=[ChangeView.model_validate(change) for change in changes])


class PolicyEntry(PolicyFields):
    """One entry of the history: a policy and since when it was in force."""

    at: datetime

    @classmethod
    def at_its_time(cls, model: str, record: PolicyRecord) -> Self:
        return cls(**_describe(model, record), at=datetime.fromtimestamp(record.at, UTC))


def _describe(model: str, record: PolicyRecord) -> dict[str, Any]:  # Any: PolicyFields' own fields, by name
    kind, keys = (record.policy.kind, record.policy.keys()) if record.policy else (Single.kind, {})
    origin = {key: getattr(record, key) for key in ("calibration", "fingerprint", "by", "version")}
    return {"model": model, "kind": kind, **dict.fromkeys(KEYS), **keys, **origin}


class BackendView(BaseModel):
    """`in_flight` and `steering` are the present counts; the engine's own are `evidence_age_s` old. Null is unknown.

    `ejected`: most of this worker's requests failed there: it gets none, or some on trial.
    `draining`: an operator wants it empty: it gets pinned requests only, and its answers go on elsewhere.
    `capabilities`: the needs it can meet, as far as it has been asked. `engine_in_flight`: the requests it held.
    `drift`: how many more these were than it had been sent by then. `readings`: what the policy has found out about it,
    by name. `cached`: the part of recent prompts' tokens that its prefix cache held, where it reports that and the
    policy plans. `size`: how much the engine can hold, likewise.
    """

    ready: bool
    ejected: bool
    draining: bool
    in_flight: int
    steering: int
    capabilities: list[Need]
    engine_in_flight: int | None
    drift: int | None
    steady_drift: int | None
    evidence_age_s: float | None
    readings: dict[str, float]
    cached: float | None
    size: dict[str, float]

    @classmethod
    def of(cls, backend: BackendState, evidence: Evidence) -> Self:
        return cls(
            ready=backend.is_ready,
            ejected=backend.is_ejected,
            draining=backend.is_draining,
            in_flight=backend.in_flight,
            steering=backend.steering,
            capabilities=sorted(backend.capabilities),
            engine_in_flight=evidence.in_flight,
            drift=evidence.drift,
            steady_drift=evidence.steady_drift,
            evidence_age_s=None if evidence.read_at is None else round(time.monotonic() - evidence.read_at, 3),
            readings=dict(backend.readings),
            cached=None if backend.cached is None else round(backend.cached, 3),
            size=dict(evidence.size),
        )


class DrainBody(BaseModel):
    """Whether a backend is to be emptied. `model`: needed when there are several. `force`: also the last one in use."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    draining: bool
    model: Text | None = None
    force: bool = False


class DryView(BaseModel):
    """A policy on trial, with its keys beside these; `split`: it would use both backends.

    `choices`: by the backend that requests went to, how many of them it would have sent to each. Only requests that
    may go to any backend count.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_show_keys)

    kind: str
    side: str
    split: bool
    side_age_s: float
    switches: int
    choices: dict[str, dict[str, int]]

    @classmethod
    def of(cls, dry: DryState) -> Self:
        choices: dict[str, dict[str, int]] = {}
        for (taken, chosen), count in dry.choices.items():
            choices.setdefault(taken, {})[chosen] = count
        return cls(
            kind=dry.policy.kind,
            side=dry.side,
            split=dry.policy.splits,
            side_age_s=round(dry.side_age_s, 3),
            switches=dry.switches,
            choices=choices,
            **{**dict.fromkeys(KEYS), **dry.policy.keys()},
        )


class ModelView(BaseModel):
    """One model now. `in_flight` counts all generations, `steering` those the policy decides by, `waiting` requests.

    `history`: the policies, the oldest first. `dry`: the policy on trial, if the configuration has one.
    """

    model: str
    in_flight: int
    steering: int
    waiting: int
    side: str
    side_age_s: float
    switches: int
    backends: dict[str, BackendView]
    policy: PolicyView
    history: list[PolicyEntry]
    dry: DryView | None

    @classmethod
    def of(cls, state: ModelState, latest: LatestEvidence) -> Self:
        backends = {
            name: BackendView.of(backend, latest.read(Place(state.model, name)))
            for name, backend in state.backends.items()
        }
        return cls(
            model=state.model,
            in_flight=sum(backend.in_flight for backend in backends.values()),
            steering=sum(backend.steering for backend in backends.values()),
            waiting=state.waiting,
            side=state.side,
            side_age_s=round(state.side_age_s, 3),
            switches=state.switches,
            backends=backends,
            policy=PolicyView.of(state.model, state.current, latest),
            history=[PolicyEntry.at_its_time(state.model, record) for record in state.history],
            dry=None if state.dry is None else DryView.of(state.dry),
        )


class WorkerView(BaseModel):
    """A worker process, its start, and how many generations of all models it has in flight; a routing.WorkerState."""

    model_config = OF_VALUES

    index: int
    pid: int
    started: datetime
    in_flight: int


class RestartView(BaseModel):
    """The last restart: when it ended, the generation that was started, and why it failed; null: it succeeded."""

    model_config = OF_VALUES

    at: datetime
    generation: int
    failed: Annotated[str | None, Field(validation_alias="why")]


class StateView(BaseModel):
    """The node's state. `answered_by`: the index of the worker that was asked; all else is the same from any worker.

    `generation`: that of the workers that accept connections, 1 at first. `restart`: null before the first one.
    `policies`: each kind of policy that this gateway has, as a JSON schema: the type, bounds and meaning of its keys.
    """

    version: str
    generation: int
    restart: RestartView | None
    answered_by: int
    workers: list[WorkerView]
    models: list[ModelView]
    policies: Mapping[str, Mapping[str, Any]] = SCHEMAS  # Any: a JSON schema


class VersionView(BaseModel):
    """The gateway's version, and by model and backend the identity that each engine reports; null is unknown.

    `is_compiled`: the gateway's modules that every token passes are compiled (docs/decisions/0016).
    """

    version: str
    is_compiled: bool
    models: dict[str, dict[str, dict[str, str | int | None]]]

    @classmethod
    def of(cls, version: str, is_compiled: bool, states: Collection[ModelState], latest: LatestEvidence) -> Self:
        models = {
            state.model: {
                name: {"engine": None, "version": None, **latest.read(Place(state.model, name)).identity}
                for name in state.backends
            }
            for state in states
        }
        return cls(version=version, is_compiled=is_compiled, models=models)


class ReadyView(BaseModel):
    """Readiness. `not_ready`: models without a ready backend. `models`: by model and backend, whether it is ready."""

    status: Literal["ready", "not ready"]
    not_ready: list[str]
    models: dict[str, dict[str, bool]]

    @classmethod
    def of(cls, states: Collection[ModelState]) -> Self:
        models = {state.model: {name: backend.is_ready for name, backend in state.backends.items()} for state in states}
        not_ready = [state.model for state in states if not state.is_ready]
        return cls(status="not ready" if not_ready else "ready", not_ready=not_ready, models=models)


class KeyView(BaseModel):
    """A key. `state`: valid, revoked or expired. `use`: what its name uses, where it is valid and has limits."""

    name: str
    id: str
    scopes: list[Scope]
    created: datetime
    expires: datetime | None
    state: str
    limits: Limits | None
    use: Use | None

    @classmethod
    def of(cls, key: Key, meter: Meter) -> Self:
        own = {name: getattr(key, name) for name in ("name", "id", "created", "expires", "limits")}
        now = datetime.now(UTC)
        # By the limits of one that has ended, the buckets of one that has its name would drain.
        use = meter.read(key.name, key.limits) if key.limits and key.is_valid(now) else None
        return cls(**own, scopes=list(key.scopes), state=key.find_state(now), use=use)
