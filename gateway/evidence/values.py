"""An engine's identity, what it holds, and how that differs from what it was sent. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

# An engine as deployed, by plain names: engine, version, model, and whatever else a redeployment changes.
Identity: TypeAlias = Mapping[str, str | int]
# How much an engine can hold, as it came out at its start: `replicas`; and of each `kv_tokens`, `max_sequences`; and by
# what speculation has yielded so far `tokens_per_step` of each sequence, `verified` ones of it in a step.
Size: TypeAlias = Mapping[str, float]


MAX_VALUE_LENGTH = 256


def shorten(identity: Identity) -> Identity:
    """Cuts long texts: they go into policies' records and into memory of a fixed size."""
    return {name: value[:MAX_VALUE_LENGTH] if isinstance(value, str) else value for name, value in identity.items()}


class Place(NamedTuple):
    """A backend of a model in the configuration."""

    model: str
    backend: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The last reading of one engine. None is unknown, and so is an empty `identity`.

    `in_flight`: requests the engine holds, running or waiting. `drift`: how many more than the ledger counts, negative
    for fewer. `steady_drift`: the part of it that every reading of the last `drift_for_s` seconds shares. `identity`
    is kept while the engine does not answer, which does not make it another one, and so is its `size`. `read_at`: the
    time of the reading in monotonic seconds, which all processes of a node share.
    """

    identity: Identity = field(default_factory=dict)
    in_flight: int | None = None
    drift: int | None = None
    steady_drift: int | None = None
    read_at: float | None = None
    size: Size = field(default_factory=dict)


UNKNOWN = Evidence()
