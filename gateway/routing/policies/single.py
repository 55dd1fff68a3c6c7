"""The policy of a model with one backend: there is nothing to choose."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core import Load, Placeable, Route, State


@dataclass(frozen=True, slots=True)
class Single:
    backend: str

    def start(self, version: int, now: float, side: str | None = None) -> State:
        return State(side=self.backend, since=now, version=version)

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        in_flight = loads[self.backend].in_flight + request.sequences
        return Route(self.backend, f"single in_flight={in_flight}"), state
