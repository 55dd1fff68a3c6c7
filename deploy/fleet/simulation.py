"""A fleet of nodes behind balancers, from event to event: arrivals, ends of answers, a node's death and return.

In: a site, a stream of arrivals. Out: every measured request and what the nodes held. Pure: a seed names a run.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deploy.fleet.balancers import Balancer
from deploy.fleet.engine import Node, Request

SAMPLE_S = 0.25  # between two looks at what the nodes hold
Arrivals: TypeAlias = Iterator[tuple[float, float]]  # (seconds, tokens after the first), in order


@dataclass(frozen=True, slots=True)
class Death:
    """One node loses what it had begun at `at_s`, and is back, empty, at `back_s`. What had not begun is sent again."""

    node: int
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Site:
    """`most`: of one queue for all nodes, how many requests a node is given at once; None: each has its own queue."""

    nodes: Sequence[Node]
    balancers: Sequence[Balancer]
    most: int | None = None
    death: Death | None = None


@dataclass(slots=True)
class Record:
    """Of the window: its requests, how many of them were `lost`, and how often nodes changed sides.

    `burst`: how many requests the node that came back was given in its first second.
    `in_flight`, `deviations`, `largest`: mean, standard deviation and largest of the nodes' in flight, look by look.
    """

    requests: list[Request] = field(default_factory=list)
    lost: int = 0
    burst: int = 0
    in_flight: list[float] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)
    switches: int = 0


def simulate(site: Site, arrivals: Arrivals, window: tuple[float, float], chance: random.Random) -> Record:
    """Run until every request that arrived in `window`, in seconds, has ended; load goes on until then."""
    return _Run(site, arrivals, window, chance).run()


class _Run:
    def __init__(self, site: Site, arrivals: Arrivals, window: tuple[float, float], chance: random.Random) -> None:
        self._site = site
        self._arrivals = arrivals
        self._begin, self._end = window
        self._chance = chance
        self._record = Record()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._ends: list[tuple[float, int, int, int]] = []  # a heap: when, node, engine, version of that forecast
        self._queue: deque[Request] = deque()
        self._order = 0
        self._open = 0

    def run(self) -> Record:
        self._plan(self._begin, self._look)
        self._plan(self._begin, lambda _: self._count_switches(-1))
        self._plan(self._end, lambda _: self._count_switches(1))
        if self._site.death is not None:
            self._plan(self._site.death.at_s, self._die)
            self._plan(self._site.death.back_s, self._return)
        for at, steps in self._arrivals:
            self._pass_until(at)
            if at > self._end and not self._open:
                break
            self._arrive(Request(at, steps, int(self._chance.random() * len(self._site.balancers))))
        return self._record

    def _pass_until(self, at: float) -> None:
        """What happens before `at`, in order."""
        while True:
            end = self._ends[0][0] if self._ends else math.inf
            event = self._events[0][0] if self._events else math.inf
            if min(end, event) > at:
                return
            if event <= end:
                now, _, happen = heapq.heappop(self._events)
                happen(now)
            else:
                self._end_one(*heapq.heappop(self._ends))

    def _arrive(self, request: Request) -> None:
        if self._begin <= request.arrived < self._end:
            self._record.requests.append(request)
            self._open += 1
        self._place(request, request.arrived)

    def _place(self, request: Request, now: float) -> None:
        nodes, most = self._site.nodes, self._site.most
        node = self._site.balancers[request.sent_by].choose(now)
        if most is not None and nodes[node].in_flight >= most:
            self._site.balancers[request.sent_by].ended(node)
            self._queue.append(request)
            return
        request.node = node
        self._count_burst(node, now)
        engine = nodes[node].place(now)
        nodes[node].engines[engine].add(request, now)
        self._forecast(node, engine)

    def _count_burst(self, node: int, now: float) -> None:
        death = self._site.death
        if death is not None and node == death.node and death.back_s <= now < death.back_s + 1:
            self._record.burst += 1

    def _forecast(self, node: int, index: int) -> None:
        engine = self._site.nodes[node].engines[index]
        if (end := engine.next_end()) < math.inf:
            heapq.heappush(self._ends, (end, node, index, engine.version))

    def _end_one(self, now: float, node: int, index: int, version: int) -> None:
        engine = self._site.nodes[node].engines[index]
        if engine.version != version:
            return
        request = engine.end_first(now)
        self._forecast(node, index)
        self._site.balancers[request.sent_by].ended(node)
        self._open -= self._begin <= request.arrived < self._end
        if self._queue:
            self._place(self._queue.popleft(), now)

    def _plan(self, at: float, happen: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, happen))

    def _look(self, now: float) -> None:
        counts = [node.in_flight for node in self._site.nodes]
        mean = sum(counts) / len(counts)
        self._record.in_flight.append(mean)
        self._record.deviations.append(math.sqrt(sum((count - mean) ** 2 for count in counts) / len(counts)))
        self._record.largest.append(max(counts))
        if now + SAMPLE_S < self._end:
            self._plan(now + SAMPLE_S, self._look)

    def _count_switches(self, sign: int) -> None:
        self._record.switches += sign * sum(node.switches for node in self._site.nodes)

    def _die(self, now: float) -> None:
        assert self._site.death is not None
        index = self._site.death.node
        self._mark(index, is_up=False)
        for engine in self._site.nodes[index].engines:
            for request in engine.die():
                if request.first_at <= now:
                    self._lose(request)
                else:
                    self._place(request, now)

    def _lose(self, request: Request) -> None:
        if self._begin <= request.arrived < self._end:
            self._record.lost += 1
            self._open -= 1

    def _return(self, now: float) -> None:
        assert self._site.death is not None
        self._mark(self._site.death.node, is_up=True)
        for _ in range(len(self._queue)):
            self._place(self._queue.popleft(), now)

    def _mark(self, node: int, *, is_up: bool) -> None:
        for balancer in self._site.balancers:
            balancer.mark(node, is_up=is_up)
