"""A fleet of nodes behind balancers, event by event: arrivals, engines' steps, a node's death and return.

In: a site and arrivals. Out: each measured request and the nodes' requests in flight. The same seed gives the same run.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from deploy.lab.fleet.balancers import Random
from deploy.lab.fleet.threshold import ThresholdRouter
from engines.physics import Job
from engines.simulation import Node

SAMPLE_S = 0.25  # between two samples of the nodes' requests in flight


@dataclass(frozen=True, slots=True)
class Death:
    """At `at_s` a node loses the answers it has begun; other requests are sent again. At `back_s` it is back, empty."""

    node: int
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Site:
    """`routers` are the nodes' own, in the same order."""

    nodes: Sequence[Node]
    routers: Sequence[ThresholdRouter]
    balancers: Sequence[Random]
    death: Death | None = None


@dataclass(slots=True)
class Record:
    """Requests that arrived in the window, by how they went, and how often nodes changed sides.

    `burst`: requests given to the returned node in its first second. `samples`: requests in flight of each node.
    """

    ended: list[Job] = field(default_factory=list)
    lost: int = 0
    burst: int = 0
    switches: int = 0
    samples: list[list[int]] = field(default_factory=list)


class Simulation:
    """Runs until every request that arrived in `window`, in seconds, has ended; load goes on until then."""

    def __init__(self, site: Site, arrivals: Iterator[Job], window: tuple[float, float], chance: random.Random) -> None:
        self._site = site
        self._arrivals = arrivals
        self._begin, self._end = window
        self._chance = chance
        self._record = Record()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []  # a heap
        self._order = 0
        self._open = 0
        self._balancers = dict[Job, Random]()  # of the requests in flight
        self._nexts = [math.inf for _ in site.nodes]  # when each node's next step ends
        self._steps = [partial(self._step, index) for index in range(len(site.nodes))]

    def run(self) -> Record:
        self._plan(self._begin, self._sample)
        self._plan(self._begin, lambda _: self._count_switches(-1))
        self._plan(self._end, lambda _: self._count_switches(1))
        if (death := self._site.death) is not None:
            self._plan(death.at_s, lambda now: self._kill(death.node, now))
            self._plan(death.back_s, lambda _: self._mark(death.node, is_up=True))
        for job in self._arrivals:
            while self._events and self._events[0][0] <= job.at:
                now, _, happen = heapq.heappop(self._events)
                happen(now)
            if job.at > self._end and not self._open:
                break
            self._open += self._is_measured(job)
            balancers = self._site.balancers
            self._place(job, balancers[int(self._chance.random() * len(balancers))], job.at)
        return self._record

    def _plan(self, at: float, happen: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, happen))

    def _is_measured(self, job: Job) -> bool:
        return self._begin <= job.at < self._end

    def _place(self, job: Job, balancer: Random, now: float) -> None:
        index = balancer.place()
        node, death = self._site.nodes[index], self._site.death
        if death is not None and index == death.node and death.back_s <= now < death.back_s + 1:
            self._record.burst += 1
        self._finish(node.run(now), index)
        self._balancers[node.arrive(job)] = balancer
        self._plan_step(index)

    def _plan_step(self, index: int) -> None:
        at = self._site.nodes[index].find_next()
        if at != self._nexts[index]:
            self._nexts[index] = at
            self._plan(at, self._steps[index])

    def _step(self, index: int, now: float) -> None:
        if now != self._nexts[index]:  # was planned anew
            return
        self._nexts[index] = math.inf
        self._finish(self._site.nodes[index].go_on(), index)
        self._plan_step(index)

    def _finish(self, ended: Sequence[Job], index: int) -> None:
        for job in ended:
            self._balancers.pop(job).ended(index)
            if self._is_measured(job):
                self._record.ended.append(job)
                self._open -= 1

    def _sample(self, now: float) -> None:
        self._record.samples.append([node.in_flight for node in self._site.nodes])
        if now + SAMPLE_S < self._end:
            self._plan(now + SAMPLE_S, self._sample)

    def _count_switches(self, sign: int) -> None:
        self._record.switches += sign * sum(router.switches for router in self._site.routers)

    def _kill(self, index: int, now: float) -> None:
        node = self._site.nodes[index]
        self._finish(node.run(now), index)
        self._mark(index, is_up=False)
        for job in node.clear():
            balancer = self._balancers.pop(job)
            if job.first_s is None:
                self._place(job, balancer, now)
            elif self._is_measured(job):
                self._record.lost += 1
                self._open -= 1
        self._nexts[index] = math.inf

    def _mark(self, index: int, *, is_up: bool) -> None:
        for balancer in self._site.balancers:
            balancer.mark(index, is_up=is_up)
