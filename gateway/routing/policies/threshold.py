"""The default policy: the low-load backend below a threshold, the high-load one above, with hysteresis and a dwell.

In: what is in flight and who is ready. Out: a route with its reason, and the side to remember.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from gateway.core import Load, Placeable, Route, State
from gateway.routing.policies.two_backends import TwoBackends
from gateway.settings import number


@dataclass(frozen=True, slots=True)
class Threshold(TwoBackends):
    """Goes to `high` at in_flight >= up, back to `low` at in_flight <= down; keeps a side for at least dwell_s seconds.

    `in_flight` counts the request being placed, and choices beyond a request's first by their mean of the last minute:
    else one sender of short requests with many would have the side change with each. Between down and up the side
    stays what it was: without that band and the dwell, load near the threshold changes engines every few requests
    (gateway-api-inference-extension PR 2062).
    """

    kind: ClassVar[str] = "threshold"

    up: Annotated[int, number(1, 1_000_000, "Go to the high-load backend at this many in flight.")]
    down: Annotated[int, number(0, 1_000_000, "Come back to the low-load backend at this many.")]
    dwell_s: Annotated[float, number(0, 3600, "Stay on a side for at least this many seconds.")] = 1.0
    moves: Annotated[bool, Strict(), Field(description="Let running answers follow when the side changes.")] = False

    def gauges(self) -> Mapping[str, float]:
        return {"up": self.up, "down": self.down}

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        yield from TwoBackends.problems(self, backends)
        # At down == up one level of load would satisfy both rules, and each request would switch sides.
        if self.down >= self.up:
            yield "down", f"must be below up ({self.up}), is {self.down}"

    def max_in_flight(self, backend: str) -> int | None:
        """Returns for `low` as many as may stay there, for `high` as many as make the policy go over."""
        return {self.low: self.up - 1, self.high: self.up}.get(backend)

    def start(self, version: int, now: float, side: str | None = None) -> State:
        """Starts as if it had dwelt on its side already, so that its first request may switch."""
        known = side if side in {self.low, self.high} else None
        return State(side=known or self.low, since=now - self.dwell_s, version=version)

    def find_left(self, state: State) -> Collection[str]:
        return {self.low, self.high} - {state.side} if self.moves else ()

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        side, in_flight = state.side, 1
        for load in loads.values():
            in_flight += load.in_flight - load.brief
        if in_flight >= self.up:
            side = self.high
        elif in_flight <= self.down:
            side = self.low
        if side != state.side and now - state.since >= self.dwell_s:
            state = replace(state, side=side, since=now)
        if loads[state.side].is_ready:
            return _make_route(state.side, in_flight, self.up, self.down), state
        # The side follows the load alone, so that a backend that comes back is used again at once.
        instead = _make_route(self.find_ready(loads), in_flight, self.up, self.down)
        return replace(instead, reason=f"{instead.reason} {state.side}=unavailable"), state


# The same few routes again and again: making one takes ten times as long as finding it.
@lru_cache(maxsize=4096)
def _make_route(backend: str, in_flight: int, up: int, down: int) -> Route:
    return Route(backend, f"threshold in_flight={in_flight} up={up} down={down}")
