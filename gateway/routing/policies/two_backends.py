"""What policies between two backends share: the backends' names.

A policy derives from TwoBackends, adds its own keys, and overrides what it does otherwise than core.Policy.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import Field, with_config

from gateway.core import Load, Policy
from gateway.settings import FORM, Name


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class TwoBackends(Policy):
    low: Annotated[Name, Field(description="Name of the low-load backend.")]
    high: Annotated[Name, Field(description="Name of the high-load backend.")]

    @classmethod
    def renew(cls, keys: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:  # Any: JSON of an earlier version
        """Returns the keys that an earlier version has kept, as this one takes them, and what operators should know."""
        return keys, None

    def __str__(self) -> str:
        return " ".join((self.kind, *(f"{key}={value}" for key, value in self.keys().items())))

    def keys(self) -> Mapping[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        for key, name in (("low", self.low), ("high", self.high)):
            if name not in backends:
                yield key, f"{name!r} is not a backend of this model (it has {', '.join(backends)})"
        if self.low == self.high:
            yield "high", f"must differ from low, both are {self.low!r}"

    def find_ready(self, loads: Mapping[str, Load]) -> str:
        """Returns a ready backend: one of the policy's own two, else a third, which otherwise only a pin reaches."""
        return next(name for name in (self.low, self.high, *loads) if loads[name].is_ready)
