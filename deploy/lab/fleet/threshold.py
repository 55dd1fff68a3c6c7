"""The gateway's threshold policy between the two engines of a simulated node.

In: the engines' requests in flight, and the time. Out: an engine's name. The simulation.Router of the lab's nodes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engines.physics import Job
from engines.simulation import Engine


@dataclass(frozen=True, slots=True)
class Threshold:
    """The gateway's policy of that name (docs/routing.md)."""

    up: int
    down: int
    dwell_s: float


class ThresholdRouter:
    """The first engine serves below the threshold, the last one above it. Nothing moves."""

    beat_s = math.inf

    def __init__(self, threshold: Threshold) -> None:
        self._threshold = threshold
        self._is_high = False
        self._since = -math.inf
        self.switches = 0

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        in_flight, is_high = sum(engine.in_flight for engine in engines.values()) + 1, self._is_high
        if in_flight >= self._threshold.up:
            is_high = True
        elif in_flight <= self._threshold.down:
            is_high = False
        if is_high != self._is_high and now - self._since >= self._threshold.dwell_s:
            self._is_high, self._since = is_high, now
            self.switches += 1
        return list(engines)[-1 if self._is_high else 0]

    def began(self, job: Job, engine: str, now: float) -> None: ...

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        return ()
