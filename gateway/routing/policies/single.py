"""Stands in for a policy where a model has one backend to choose; others of it get the requests that it cannot do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gateway.core import Capacity, Demand, Kept, Load, MoveTerms, Placeable, Route, State


@dataclass(frozen=True, slots=True)
class Single:
    kind: ClassVar[str] = "single"

    backend: str

    def start(self, version: int, now: float, side: str | None = None) -> State:
        return State(side=self.backend, since=now, version=version)

    @property
    def plans(self) -> bool:
        return False

    def plan(self, demand: Demand, state: State, now: float) -> State:
        return state

    def find_left(self, state: State) -> tuple[str, ...]:
        return ()

    def find_kept(self, state: State) -> Kept | None:
        return None

    def resume(self, state: State, kept: Kept) -> State:
        return state

    def readings(self, state: State) -> Mapping[str, Mapping[str, float]]:
        return {}

    @property
    def splits(self) -> bool:
        return False

    @property
    def spills(self) -> bool:
        return False

    def find_capacity(self, backend: str, state: State) -> Capacity | None:
        return None

    def find_step_s(self, backend: str, state: State, streams: int, waiting: float) -> float | None:
        return None

    def find_terms(self, state: State, left: Collection[str], in_flight: int) -> MoveTerms:
        return MoveTerms()

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        is_own = loads[self.backend].is_ready or len(loads) == 1
        backend = self.backend if is_own else next(name for name, load in loads.items() if load.is_ready)
        return Route(backend, f"single in_flight={loads[backend].in_flight + request.sequences}"), state
