"""Stands in for a policy where a model has one backend to choose; others of it get the requests that it cannot do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gateway.core import Load, Placeable, Policy, Route, State


@dataclass(frozen=True, slots=True)
class Single(Policy):
    kind: ClassVar[str] = "single"

    backend: str

    def start(self, version: int, now: float, side: str | None = None) -> State:
        return State(side=self.backend, since=now, version=version)

    @property
    def spills(self) -> bool:
        return False

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        is_own = loads[self.backend].is_ready or len(loads) == 1
        backend = self.backend if is_own else next(name for name, load in loads.items() if load.is_ready)
        return Route(backend, f"single in_flight={loads[backend].in_flight + request.sequences}"), state
