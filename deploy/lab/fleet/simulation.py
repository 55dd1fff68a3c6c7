"""A fleet of nodes behind balancers, event by event: arrivals, ends of answers, a node's death and return.

In: a site and arrivals. Out: each measured request and the nodes' requests in flight. The same seed gives the same run.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deploy.lab.fleet.balancers import Random
from deploy.lab.fleet.node import Node, Request

SAMPLE_S = 0.25  # between two samples of the nodes' requests in flight
Arrivals: TypeAlias = Iterator[tuple[float, float]]  # (seconds, tokens after the first), in order


@dataclass(frozen=True, slots=True)
class Death:
    """At `at_s` a node loses the answers it has begun; other requests are sent again. At `back_s` it is back, empty."""

    node: int
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Site:
    nodes: Sequence[Node]
    balancers: Sequence[Random]
    death: Death | None = None


@dataclass(slots=True)
class Record:
    """Requests that arrived in the window, how many were `lost`, and how often nodes changed sides.

    `burst`: requests given to the returned node in its first second. `samples`: requests in flight of each node.
    """

    requests: list[Request] = field(default_factory=list)
    lost: int = 0
    burst: int = 0
    switches: int = 0
    samples: list[list[int]] = field(default_factory=list)


class Simulation:
    """Runs until every request that arrived in `window`, in seconds, has ended; load goes on until then."""

    def __init__(self, site: Site, arrivals: Arrivals, window: tuple[float, float], chance: random.Random) -> None:
        self._site = site
        self._arrivals = arrivals
        self._begin, self._end = window
        self._chance = chance
        self._record = Record()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []  # a heap
        self._order = 0
        self._open = 0

    def run(self) -> Record:
        self._plan(self._begin, self._sample)
        self._plan(self._begin, lambda _: self._count_switches(-1))
        self._plan(self._end, lambda _: self._count_switches(1))
        if (death := self._site.death) is not None:
            self._plan(death.at_s, lambda now: self._kill(death.node, now))
            self._plan(death.back_s, lambda _: self._mark(death.node, is_up=True))
        for at, steps in self._arrivals:
            while self._events and self._events[0][0] <= at:
                now, _, happen = heapq.heappop(self._events)
                happen(now)
            if at > self._end and not self._open:
                break
            self._receive(Request(at, steps, int(self._chance.random() * len(self._site.balancers))))
        return self._record

    def _plan(self, at: float, happen: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, happen))

    def _is_measured(self, request: Request) -> bool:
        return self._begin <= request.arrived < self._end

    def _receive(self, request: Request) -> None:
        if self._is_measured(request):
            self._record.requests.append(request)
            self._open += 1
        self._place(request, request.arrived)

    def _place(self, request: Request, now: float) -> None:
        index = self._site.balancers[request.balancer].place()
        node, death = self._site.nodes[index], self._site.death
        if death is not None and index == death.node and death.back_s <= now < death.back_s + 1:
            self._record.burst += 1
        engine = node.choose_engine(now)
        node.engines[engine].add(request, now)
        self._plan_end(index, engine)

    def _plan_end(self, node: int, index: int) -> None:
        engine = self._site.nodes[node].engines[index]
        version = engine.version

        def end(now: float) -> None:
            if engine.version != version:
                return
            request = engine.end_first(now)
            self._plan_end(node, index)
            self._site.balancers[request.balancer].ended(node)
            self._open -= self._is_measured(request)

        if (at := engine.next_end()) < math.inf:
            self._plan(at, end)

    def _sample(self, now: float) -> None:
        self._record.samples.append([node.in_flight for node in self._site.nodes])
        if now + SAMPLE_S < self._end:
            self._plan(now + SAMPLE_S, self._sample)

    def _count_switches(self, sign: int) -> None:
        self._record.switches += sign * sum(node.switches for node in self._site.nodes)

    def _kill(self, index: int, now: float) -> None:
        self._mark(index, is_up=False)
        for request in [request for engine in self._site.nodes[index].engines for request in engine.clear()]:
            if request.first_at > now:
                self._place(request, now)
            elif self._is_measured(request):
                self._record.lost += 1
                self._open -= 1

    def _mark(self, index: int, *, is_up: bool) -> None:
        for balancer in self._site.balancers:
            balancer.mark(index, is_up=is_up)
