"""One engine that shares its speed among what it runs, and what a node of a fleet is: two of them and a threshold.

In: requests and the time. Out: when the next of them ends, and which do. Pure; draws nothing at random.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engines.reference.curve import Curve


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds to the first token and from token to token, with 1, 2, ... requests running; as many as may run."""

    ttft_s: Sequence[float]
    itl_s: Sequence[float]

    @classmethod
    def of(cls, curve: Curve, most: int) -> "Speeds":
        loads = range(1, most + 1)
        return cls([curve.ttft_s(load) for load in loads], [curve.itl_s(load) for load in loads])

    @property
    def most(self) -> int:
        return len(self.itl_s)


@dataclass(slots=True, eq=False)
class Request:
    """`steps`: tokens after the first. `arrived` at a balancer, which is `sent_by`; `first_at`: its first token."""

    arrived: float
    steps: float
    sent_by: int
    node: int = -1
    first_at: float = math.inf
    ended: float = math.inf

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.arrived

    @property
    def tpot_s(self) -> float:
        return (self.ended - self.first_at) / self.steps


class Engine:
    """Runs up to `speeds.most` requests at the speed that their number gives each; others wait in order.

    What is left of a request is counted in steps of the present speed, its first token as as many of them as it takes
    at the speed of its start. All advance alike, so one sum for all of them says who ends next.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._running: list[tuple[float, int, Request]] = []  # a heap by where the sum stands when it ends
        self._waiting: deque[Request] = deque()
        self._sum = 0.0
        self._at = 0.0
        self._order = 0
        self.version = 0  # of `next_end`

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._waiting)

    def add(self, request: Request, now: float) -> None:
        self._advance(now)
        if len(self._running) < self._speeds.most:
            self._start(request, now)
        else:
            self._waiting.append(request)
        self.version += 1

    def next_end(self) -> float:
        if not self._running:
            return math.inf
        left = max(self._running[0][0] - self._sum, 0.0)
        return self._at + left * self._speeds.itl_s[len(self._running) - 1]

    def end_first(self, now: float) -> Request:
        """The request whose end `next_end` said."""
        self._advance(now)
        self._sum, _, request = heapq.heappop(self._running)
        request.ended = now
        if self._waiting:
            self._start(self._waiting.popleft(), now)
        if not self._running:
            self._sum = 0.0
        self.version += 1
        return request

    def die(self) -> list[Request]:
        """Everything it had, as it was left; empty from here on."""
        left = [request for _, _, request in self._running] + list(self._waiting)
        self._running.clear()
        self._waiting.clear()
        self._sum = 0.0
        self.version += 1
        return left

    def _advance(self, now: float) -> None:
        if self._running:
            self._sum += (now - self._at) / self._speeds.itl_s[len(self._running) - 1]
        self._at = now

    def _start(self, request: Request, now: float) -> None:
        load = len(self._running)
        ttft_s = self._speeds.ttft_s[load]
        request.first_at = now + ttft_s
        self._order += 1
        steps = request.steps + ttft_s / self._speeds.itl_s[load]
        heapq.heappush(self._running, (self._sum + steps, self._order, request))


@dataclass(frozen=True, slots=True)
class Threshold:
    """The gateway's policy of that name (docs/routing.md)."""

    up: int
    down: int
    dwell_s: float


class Node:
    """One gateway node: the first engine below the threshold, the last above; with one engine there is no choice."""

    def __init__(self, engines: Sequence[Engine], threshold: Threshold | None = None) -> None:
        self.engines = engines
        self._threshold = threshold
        self._side = 0
        self._since = -math.inf
        self.switches = 0
        self.is_up = True

    @property
    def in_flight(self) -> int:
        return sum(engine.in_flight for engine in self.engines)

    def place(self, now: float) -> int:
        """Which engine gets the request that has arrived."""
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
