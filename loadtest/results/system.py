"""The system under test: one model behind two backends, and what identifies the engines there. Pure.

In: the JSON of the gateway's /version, at the start of a run and at its end. Out: engines; Untrusted if they changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from loadtest.client.errors import Untrusted

Json: TypeAlias = Mapping[str, object]
Engines: TypeAlias = Mapping[str, Mapping[str, str | int]]  # by backend, without what is not known
Size: TypeAlias = Mapping[str, float]  # how much an engine can hold, and what speculation yields


@dataclass(frozen=True, slots=True)
class SystemUnderTest:
    """`low` and `high`: the backends that the live policy has for low and for high load. `policy`: that policy, and
    `gateway`: its version, as the gateway reported them before the run. `sizes`: by backend, as far as its engine
    reports them.
    """

    model: str
    low: str
    high: str
    policy: Json
    gateway: Json
    engines: Engines = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)

    @property
    def backends(self) -> tuple[str, str]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class InFlight:
    """Requests in flight on one backend: all, and those of other clients (None: the gateway does not report them)."""

    all: int
    foreign: int | None


def read_engines(version: Json, model: str, backends: tuple[str, str]) -> Engines:
    """Reads the engines by backend. Empty for a gateway that reports nothing about them."""
    reported = _object(_object(version.get("models")).get(model))
    known = {
        name: {field: value for field, value in _object(reported.get(name)).items() if isinstance(value, str | int)}
        for name in backends
    }
    return {name: fields for name, fields in known.items() if fields}


def confirm_same(start: Engines, end: Engines) -> Engines:
    """Returns the fields of both. Raises Untrusted if one changed: half of the cells would be of another engine."""
    changes = [
        f"{name} {field} was {old}, is {end[name][field]}"
        for name, fields in start.items()
        for field, old in fields.items()
        if end.get(name, {}).get(field, old) != old
    ]
    if changes:
        raise Untrusted(f"ENGINES CHANGED while measuring: {'; '.join(changes)}")
    return {name: {**end.get(name, {}), **start.get(name, {})} for name in {**start, **end}}


def _object(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}
