"""The gateway's admin API: one model's two backends and its policy, read from it and written back to it.

In: a target. Out: a SystemUnderTest, how many requests are in flight, where they go, the policy after a change.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from loadtest.client.errors import Unreachable
from loadtest.client.target import Target
from loadtest.results.system import InFlight, Json, SystemUnderTest, confirm_same, read_engines

MOVES = re.compile(r"^crossover_moves_total\{([^}]*)\} (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Routing:
    """Where a model's requests go at one moment. `switches`: changes of the side since the gateway began."""

    side: str
    switches: int
    in_flight: Mapping[str, int]


async def find_system(target: Target, model: str | None) -> SystemUnderTest:
    """Finds the named model, or the only one. Raises Unreachable unless both its backends are ready to be compared."""
    entry = _choose(await _list_models(target), model)
    policy = _mapping(entry.get("policy"))
    low, high = policy.get("low"), policy.get("high")
    if not isinstance(low, str) or not isinstance(high, str):
        raise Unreachable(f"model {entry['model']} has no policy between two backends: there is nothing to compare")
    for name in (low, high):
        if not _mapping(_mapping(entry.get("backends")).get(name)).get("ready"):
            raise Unreachable(f"backend {name} of model {entry['model']} is not ready")
    version = _mapping(await target.fetch("GET", "/version"))
    system = SystemUnderTest(str(entry["model"]), low, high, policy, {"version": version.get("version")})
    return replace(system, engines=read_engines(version, system.model, system.backends))


async def confirm_engines(target: Target, system: SystemUnderTest) -> SystemUnderTest:
    """Adds what is known of the engines by now. Raises Untrusted if they are not those that it was found with."""
    version = _mapping(await target.fetch("GET", "/version"))
    now = read_engines(version, system.model, system.backends)
    return replace(system, engines=confirm_same(system.engines, now))


async def read_sizes(target: Target, system: SystemUnderTest) -> SystemUnderTest:
    """Adds how much the engines can hold, as far as they report it by now."""
    backends = _mapping(_choose(await _list_models(target), system.model).get("backends"))
    sizes = {name: _mapping(_mapping(backends.get(name)).get("size") or {}) for name in system.backends}
    known = {
        name: {key: float(value) for key, value in size.items() if isinstance(value, int | float)}
        for name, size in sizes.items()
    }
    return replace(system, sizes=known)


async def count_in_flight(target: Target, system: SystemUnderTest) -> dict[str, InFlight]:
    """Counts the requests in flight, by backend."""
    backends = _mapping(_choose(await _list_models(target), system.model).get("backends"))
    return {name: _read_counts(_mapping(backends.get(name))) for name in system.backends}


async def read_routing(target: Target, system: SystemUnderTest) -> Routing:
    """Reads the side, its changes so far, and what is in flight by backend."""
    entry = _choose(await _list_models(target), system.model)
    side, switches, backends = entry.get("side"), entry.get("switches"), _mapping(entry.get("backends"))
    counts = {name: _read_counts(_mapping(backends.get(name))).all for name in system.backends}
    return Routing(str(side), switches if isinstance(switches, int) else 0, counts)


async def count_moves(target: Target, system: SystemUnderTest) -> int:
    """Counts the answers that went on at another backend since the gateway began."""
    page = await target.fetch_text("GET", "/metrics")
    own = f'model="{system.model}"'
    return round(sum(float(value) for labels, value in MOVES.findall(page) if own in labels))


def _read_counts(backend: Json) -> InFlight:
    """Reads the counts. `steering`: the requests that the policy counts: all but those pinned and tagged as a run's."""
    in_flight, steering = backend.get("in_flight"), backend.get("steering")
    return InFlight(in_flight if isinstance(in_flight, int) else 0, steering if isinstance(steering, int) else None)


async def apply_policy(target: Target, system: SystemUnderTest, keys: Json, run: str) -> Json:
    """Sets the keys of the live policy, and reads it back. Raises Unreachable if another one is in force then.

    A live policy whose kind has all these keys keeps its others; else the first kind that has them takes its place.
    """
    live = await _read_policy(target, system)
    if (live.get("low"), live.get("high")) != system.backends:
        raise Unreachable("the policy was changed to other backends while measuring; nothing applied")
    kind, known = _find_kind(_mapping(await target.fetch("GET", "/admin/state")), str(live.get("kind")), keys)
    kept = {key: live.get(key) for key in ("model", "version", "low", "high")}
    if kind == live.get("kind"):
        kept |= {key: live.get(key) for key in known}
    wanted = {"kind": kind, **keys, "calibration": run, "by": "crossover calibrate"}
    # The gateway compares the fingerprint with its engines from now on, and reports a threshold of other engines.
    fingerprint = {"fingerprint": system.engines} if system.engines else {}
    # The version is that of `live`: if somebody changes the policy in between, the gateway refuses ours.
    await target.fetch("PUT", "/admin/policy", {**kept, **wanted, **fingerprint})
    now = await _read_policy(target, system)
    reported = {key: now.get(key) for key, value in keys.items() if isinstance(value, int)}
    if (now.get("kind"), now.get("calibration")) != (kind, run) or not reported.items() <= keys.items():
        shown = " ".join(f"{key}={value}" for key, value in reported.items())
        raise Unreachable(f"the gateway accepted the policy and then reported {shown or now.get('kind')}")
    return now


async def set_policy(target: Target, system: SystemUnderTest, keys: Json) -> None:
    """Sets a policy between the system's backends, whatever is in force. Raises Unreachable if it is refused."""
    policy = {"model": system.model, "low": system.low, "high": system.high, **keys, "by": "crossover rehearse"}
    await target.fetch("PUT", "/admin/policy", policy)


async def restore_policy(target: Target, system: SystemUnderTest) -> None:
    """Sets the policy that the run found, with the record of what it was measured on."""
    live = await _read_policy(target, system)
    before = {key: value for key, value in system.policy.items() if key != "stale"}
    await target.fetch("PUT", "/admin/policy", {**before, "version": live.get("version")})


def _find_kind(state: Json, live: str, wanted: Iterable[str]) -> tuple[str, Json]:
    """Returns a kind of policy with the wanted keys, preferably the live one, and the schemas of its keys."""
    kinds = _mapping(state.get("policies"))
    schemas = {kind: _mapping(_mapping(schema).get("properties")) for kind, schema in kinds.items()}
    fitting = {kind: keys for kind, keys in schemas.items() if set(wanted) <= keys.keys()}
    if not fitting:
        raise Unreachable(f"the gateway has no policy with the keys {' and '.join(wanted)}")
    kind = live if live in fitting else next(iter(fitting))
    return kind, fitting[kind]


async def _read_policy(target: Target, system: SystemUnderTest) -> Json:
    return _mapping(await target.fetch("GET", f"/admin/policy?model={quote(system.model, safe='')}"))


async def _list_models(target: Target) -> list[Json]:
    models = _mapping(await target.fetch("GET", "/admin/state")).get("models")
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
    """Returns `value`. Raises Unreachable if it is no object, though the contract has one: another process answered."""
    if not isinstance(value, Mapping):
        raise Unreachable("the gateway's admin API answers in another shape than this version knows")
    return value
