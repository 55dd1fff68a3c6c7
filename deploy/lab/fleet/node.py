"""A simulated gateway node: its engines, which share their speed among their requests, and the threshold between them.

In: requests and the time. Out: when the next request ends, and which. Pure; draws nothing at random.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds to the first token and between tokens while 1, 2, ... requests run. Their length limits how many run."""

    ttft_s: Sequence[float]
    itl_s: Sequence[float]


@dataclass(slots=True, eq=False)
class Request:
    """A request of `steps` tokens after the first. `balancer`: index of the balancer that received it at `arrived`."""

    arrived: float
    steps: float
    balancer: int
    first_at: float = math.inf
    ended: float = math.inf

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.arrived

    @property
    def tpot_s(self) -> float:
        return (self.ended - self.first_at) / self.steps


class Engine:
    """Runs as many requests as its speeds cover; the others wait in order.

    The work left of a request is counted in steps of the current speed; its first token counts as the steps that it
    would take at the speed of its start. All running requests advance alike, so one sum shows which ends next.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._running: list[tuple[float, int, Request]] = []  # a heap by the value of `_sum` at which each ends
        self._waiting: deque[Request] = deque()
        self._sum = self._at = 0.0
        self._order = 0
        self.version = 0  # changes with `next_end`

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._waiting)

    def add(self, request: Request, now: float) -> None:
        self._advance(now)
        if len(self._running) < len(self._speeds.itl_s):
            self._start(request, now)
        else:
            self._waiting.append(request)
        self.version += 1

    def next_end(self) -> float:
        if not self._running:
            return math.inf
        return self._at + max(self._running[0][0] - self._sum, 0.0) * self._speeds.itl_s[len(self._running) - 1]

    def end_first(self, now: float) -> Request:
        self._advance(now)
        self._sum, _, request = heapq.heappop(self._running)
        request.ended = now
        if self._waiting:
            self._start(self._waiting.popleft(), now)
        if not self._running:
            self._sum = 0.0
        self.version += 1
        return request

    def clear(self) -> list[Request]:
        """Drop everything and return it, unfinished."""
        dropped = [*(request for _, _, request in self._running), *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self._sum = 0.0
        self.version += 1
        return dropped

    def _advance(self, now: float) -> None:
        if self._running:
            self._sum += (now - self._at) / self._speeds.itl_s[len(self._running) - 1]
        self._at = now

    def _start(self, request: Request, now: float) -> None:
        load = len(self._running)
        request.first_at = now + self._speeds.ttft_s[load]
        self._order += 1
        steps = request.steps + self._speeds.ttft_s[load] / self._speeds.itl_s[load]
        heapq.heappush(self._running, (self._sum + steps, self._order, request))


@dataclass(frozen=True, slots=True)
class Threshold:
    """The gateway's policy of that name (docs/routing.md)."""

    up: int
    down: int
    dwell_s: float


class Node:
    """The first engine serves below the threshold, the last one above it; without a threshold there is no choice."""

    def __init__(self, engines: Sequence[Engine], threshold: Threshold | None = None) -> None:
        self.engines = engines
        self._threshold = threshold
        self._side = 0
        self._since = -math.inf
        self.switches = 0

    @property
    def in_flight(self) -> int:
        return sum(engine.in_flight for engine in self.engines)

    def choose_engine(self, now: float) -> int:
        if (threshold := self._threshold) is None:
            return 0
        in_flight, side = self.in_flight + 1, self._side
        if in_flight >= threshold.up:
            side = 1
        elif in_flight <= threshold.down:
            side = 0
        if side != self._side and now - self._since >= threshold.dwell_s:
            self._side, self._since = side, now
            self.switches += 1
        return self._side
