"""The default policy: the low-load backend below a threshold, the high-load one above, with hysteresis and a dwell.

In: what is in flight and who is ready. Out: a route with its reason, and the side to remember.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gateway.core import Load, Placeable, Route, State
from gateway.settings import ThresholdSettings


@dataclass(frozen=True, slots=True)
class Threshold:
    """To `high` at in_flight >= up, back to `low` at in_flight <= down, each side kept for at least `dwell_s`.

    `in_flight` counts the request being placed, with all its sequences. Between down and up the side stays what it was:
    without that band and the dwell, load near the threshold changes engines every few requests
    (gateway-api-inference-extension PR 2062).
    """

    settings: ThresholdSettings

    def start(self, version: int, now: float, side: str | None = None) -> State:
        """On `side` if this policy has it, else low; as if it had dwelt there, so its first request may switch."""
        known = side if side in {self.settings.low, self.settings.high} else None
        return State(side=known or self.settings.low, since=now - self.settings.dwell_s, version=version)

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        settings, side, in_flight = self.settings, state.side, request.sequences
        for load in loads.values():
            in_flight += load.in_flight
        if in_flight >= settings.up:
            side = settings.high
        elif in_flight <= settings.down:
            side = settings.low
        if side != state.side and now - state.since >= settings.dwell_s:
            state = replace(state, side=side, since=now)
        if loads[state.side].is_ready:
            return _make_route(state.side, in_flight, settings.up, settings.down), state
        # The side follows the load alone, so that a backend that comes back is used again at once.
        instead = _make_route(self._find_ready(loads), in_flight, settings.up, settings.down)
        return replace(instead, reason=f"{instead.reason} {state.side}=unavailable"), state

    def _find_ready(self, loads: Mapping[str, Load]) -> str:
        # The policy's own two come before a third backend, which is otherwise reached by pin alone.
        by_preference = (self.settings.low, self.settings.high, *loads)
        return next(name for name in by_preference if loads[name].is_ready)


# The same few routes again and again: making one takes ten times as long as finding it.
@lru_cache(maxsize=4096)
def _make_route(backend: str, in_flight: int, up: int, down: int) -> Route:
    return Route(backend, f"threshold in_flight={in_flight} up={up} down={down}")
