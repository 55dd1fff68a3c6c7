"""A policy for GPUs of their own: the low-load backend keeps as many requests as it serves best, the rest go on.

In: what is in flight at the low-load backend and who is ready. Out: a route with its reason. It remembers nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

from gateway.core import Load, Placeable, Route, State
from gateway.routing.policies.two_backends import TwoBackends
from gateway.settings import number


@dataclass(frozen=True, slots=True)
class Spillover(TwoBackends):
    """Sends to `low` while it has at most `keep` in flight, the request being placed included, and to `high` the rest.

    Both engines work at once, so it is for GPUs that they do not share. Where they do, each slows the other down.
    """

    kind: ClassVar[str] = "spillover"

    keep: Annotated[int, number(0, 1_000_000, "Keep this many in flight at the low-load backend.")]

    def gauges(self) -> Mapping[str, float]:
        return {"keep": self.keep}

    def max_in_flight(self, backend: str) -> int | None:
        return {self.low: self.keep}.get(backend)

    def start(self, version: int, now: float, side: str | None = None) -> State:
        """Starts on the side of `low`, which gets the next request below `keep`; the side never changes."""
        return State(side=self.low, since=now, version=version)

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        at_low = loads[self.low].in_flight + request.sequences
        backend = self.low if at_low <= self.keep else self.high
        if loads[backend].is_ready:
            return _make_route(backend, self.low, at_low, self.keep), state
        instead = self.find_ready(loads)
        reason = _make_route(instead, self.low, at_low, self.keep).reason
        return Route(instead, f"{reason} {backend}=unavailable"), state


# The same few routes again and again, as in threshold.py.
@lru_cache(maxsize=4096)
def _make_route(backend: str, low: str, at_low: int, keep: int) -> Route:
    return Route(backend, f"spillover {low}={at_low} keep={keep}")
