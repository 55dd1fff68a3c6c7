"""The nouns: who an engine is, what it holds, and how that differs from what it was sent. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

# What identifies an engine as deployed, by plain names: engine, version, model, whatever else a redeployment changes.
Identity: TypeAlias = Mapping[str, str | int]


class Place(NamedTuple):
    """Where a backend stands in the configuration."""

    model: str
    backend: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one engine said last. None is unknown, and so is an empty `identity`.

    `in_flight`: requests the engine holds, running or waiting. `drift`: how many more than the ledger counts, negative
    for fewer. `steady_drift`: the part of it that every reading of the last `drift_for_s` seconds agrees on. `identity`
    is kept while the engine does not answer: what it was is not refuted by its silence.
    """

    identity: Identity = field(default_factory=dict)
    in_flight: int | None = None
    drift: int | None = None
    steady_drift: int | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "identity": dict(self.identity),
            "in_flight": self.in_flight,
            "drift": self.drift,
            "steady_drift": self.steady_drift,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:  # Any: what to_json wrote, maybe in another process
        return cls(**document)


UNKNOWN = Evidence()
