"""What is measured: one model's two backends and its policy, read from the gateway's admin API and written back to it.

In: a target. Out: a Subject, how many requests are in flight, the policy after a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from loadtest.decide.threshold import Threshold
from loadtest.engines import Engines, confirm_same, read_engines
from loadtest.errors import Unreachable
from loadtest.target import Target

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Subject:
    """`low` and `high` as the live policy names them; `policy` as the gateway answered, `engines` as it knows them.

    `policies`: the kinds of policy that the gateway has, each with a JSON schema of its keys.
    """

    model: str
    low: str
    high: str
    policy: Json
    gateway: Json
    engines: Engines = field(default_factory=dict)
    policies: Json = field(default_factory=dict)

    @property
    def backends(self) -> tuple[str, str]:
        return self.low, self.high


async def find_subject(target: Target, model: str | None) -> Subject:
    """The named model, or the only one. Raises Unreachable unless both its backends are ready to be compared."""
    state = _mapping(await target.fetch("GET", "/admin/state"))
    entry = _choose(_models(state), model)
    policy = _mapping(entry.get("policy"))
    low, high = policy.get("low"), policy.get("high")
    if not isinstance(low, str) or not isinstance(high, str):
        raise Unreachable(f"model {entry['model']} has no policy between two backends: there is nothing to compare")
    for name in (low, high):
        if not _mapping(_mapping(entry.get("backends")).get(name)).get("ready"):
            raise Unreachable(f"backend {name} of model {entry['model']} is not ready")
    version = _mapping(await target.fetch("GET", "/version"))
    subject = Subject(str(entry["model"]), low, high, policy, {"version": version.get("version")})
    engines = read_engines(version, subject.model, subject.backends)
    return replace(subject, engines=engines, policies=_mapping(state.get("policies")))


async def confirm_engines(target: Target, subject: Subject) -> Subject:
    """With what is known of its engines by now. Raises EnginesChanged if they are others than it was found with."""
    version = _mapping(await target.fetch("GET", "/version"))
    return replace(
        subject, engines=confirm_same(subject.engines, read_engines(version, subject.model, subject.backends))
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """In flight on a backend: all requests, and those that are no calibration's (None: the gateway does not tell)."""

    in_flight: int
    foreign: int | None


async def count_by_backend(target: Target, subject: Subject) -> dict[str, Counts]:
    state = _mapping(await target.fetch("GET", "/admin/state"))
    backends = _mapping(_choose(_models(state), subject.model).get("backends"))
    return {name: _read_counts(_mapping(backends.get(name))) for name in subject.backends}


def _read_counts(backend: Json) -> Counts:
    """`steering`: what the policy goes by, which is all but what is pinned and tagged as a run."""
    in_flight, steering = backend.get("in_flight"), backend.get("steering")
    return Counts(in_flight if isinstance(in_flight, int) else 0, steering if isinstance(steering, int) else None)


async def count_in_flight(target: Target, subject: Subject) -> int:
    """Requests in flight on the two backends, whoever sent them."""
    return sum(counts.in_flight for counts in (await count_by_backend(target, subject)).values())


async def apply_threshold(target: Target, subject: Subject, threshold: Threshold, run: str) -> Json:
    """Set the live policy and read it back. Raises Unreachable if another one is in force then."""
    live = _mapping(await target.fetch("GET", f"/admin/policy?model={quote(subject.model, safe='')}"))
    if (live.get("low"), live.get("high")) != subject.backends:
        raise Unreachable("the policy was changed to other backends while measuring; nothing applied")
    kind, keys = _find_kind(subject, str(live.get("kind")))
    kept = {key: live.get(key) for key in ("model", "version", *keys)}
    wanted = {"kind": kind, "up": threshold.up, "down": threshold.down, "calibration": run, "by": "crossover calibrate"}
    # The version is that of `live`: if somebody changes the policy in between, the gateway refuses ours.
    await target.fetch("PUT", "/admin/policy", {**kept, **wanted, **_fingerprint(subject)})
    now = _mapping(await target.fetch("GET", f"/admin/policy?model={quote(subject.model, safe='')}"))
    if (now.get("up"), now.get("down")) != (threshold.up, threshold.down):
        raise Unreachable(
            f"the gateway accepted the policy and then reported up={now.get('up')} down={now.get('down')}"
        )
    return now


async def restore_policy(target: Target, subject: Subject) -> None:
    """Put back the policy that the run found, with the run that had measured it."""
    live = _mapping(await target.fetch("GET", f"/admin/policy?model={quote(subject.model, safe='')}"))
    await target.fetch("PUT", "/admin/policy", {**subject.policy, "version": live.get("version")})


def _find_kind(subject: Subject, live: str) -> tuple[str, Json]:
    """A kind of policy with the keys `up` and `down`, the live one if it has them, and all of its keys."""
    schemas = {kind: _mapping(_mapping(schema).get("properties")) for kind, schema in subject.policies.items()}
    fitting = {kind: keys for kind, keys in schemas.items() if {"up", "down"} <= keys.keys()}
    if not fitting:
        raise Unreachable("the gateway has no policy that takes a threshold (keys up and down)")
    kind = live if live in fitting else next(iter(fitting))
    return kind, fitting[kind]


def _fingerprint(subject: Subject) -> Json:
    """The gateway compares it with its engines from then on, and says when the threshold is no longer theirs."""
    return {"fingerprint": subject.engines} if subject.engines else {}


def _models(state: Json) -> list[Json]:
    models = state.get("models")
    if not isinstance(models, list) or not models:
        raise Unreachable("/admin/state names no model")
    return [_mapping(entry) for entry in models]


def _choose(models: list[Json], model: str | None) -> Json:
    names = [str(entry.get("model")) for entry in models]
    if model is None and len(models) > 1:
        raise Unreachable(f"the gateway serves {', '.join(names)}: choose one with --model")
    if model is not None and model not in names:
        raise Unreachable(f"the gateway serves no model {model}, only {', '.join(names)}")
    return models[0 if model is None else names.index(model)]


def _mapping(value: object) -> Json:
    """What another process answered where its contract has an object."""
    if not isinstance(value, Mapping):
        raise Unreachable("the gateway's admin API answers in another shape than this version knows")
    return value
