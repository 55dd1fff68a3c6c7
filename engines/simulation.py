"""A node's engines and their requests in simulated time: a step of an engine is one event, however many it serves.

In: engines by their step times, arrivals, and a router that places and moves. Out: when each answer ended. The clock is
the simulation's own; nothing here sleeps, and one seed of arrivals gives one result.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

PREFILL_TOKENS = 8192  # at most in one step, as engines chunk them
TINY_S = 1e-12  # less than that is a rounding error


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives `at` so many seconds after the beginning; lengths in tokens.

    `only`: the one engine that can serve it.
    """

    at: float
    prompt_tokens: int
    tokens: int
    only: str | None = None


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """`step_s`: seconds of a step by how many are in the engine at once, of which there are `max_in_flight` at most.

    The prefill of prompts of `prompt_tokens` is part of the measured steps; what is longer, or comes from another
    engine, takes its time besides.
    """

    step_s: Callable[[float], float]
    prefill_tokens_per_s: float
    max_in_flight: int
    prompt_tokens: int


@dataclass(slots=True, eq=False)
class Job:
    """A request under way. `generated` tokens came before it was at this engine, whose step count was `since` then."""

    arrival: Arrival
    engine: str = ""
    generated: int = 0
    since: int | None = None  # None while it waits
    first_s: float | None = None
    end_s: float | None = None


class Router(Protocol):
    """Decides where requests run. `beat` is called every `beat_s` and returns jobs with the engine to move each to."""

    beat_s: float

    def place(self, job: Job, engines: "Mapping[str, Engine]", now: float) -> str: ...

    def beat(self, engines: "Mapping[str, Engine]", now: float) -> Iterable[tuple[Job, str]]: ...


@dataclass(slots=True)
class Engine:
    """One engine: a batch that takes steps together, and a queue before it."""

    speed: EngineSpeed
    steps: int = 0
    work_s: float = 0.0  # left of the step under way, if the engine were alone; 0: none is
    step_s: float = 0.0  # of the step under way
    running: set[Job] = field(default_factory=set)
    waiting: deque[Job] = field(default_factory=deque)
    generated: int = 0
    _starting: list[Job] = field(default_factory=list)
    _ends: list[tuple[int, int, Job]] = field(default_factory=list)  # a heap; entries of jobs that left are skipped

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.waiting)

    def jobs(self) -> Iterable[Job]:
        return itertools.chain(self.running, self.waiting)

    def count_tokens(self, job: Job) -> int:
        """Returns how many tokens the answer has so far."""
        return job.generated if job.since is None else job.generated + self.steps - job.since

    def leave(self, job: Job) -> None:
        job.generated, job.since = self.count_tokens(job), None
        if job in self.running:
            self.running.remove(job)
        else:
            self.waiting.remove(job)

    def begin_step(self, order: Iterator[int]) -> None:
        """Admits what waits, and begins a step if anything runs."""
        tokens = 0
        while self.waiting and len(self.running) < self.speed.max_in_flight and tokens < PREFILL_TOKENS:
            job = self.waiting.popleft()
            job.since = self.steps
            self.running.add(job)
            self._starting.append(job)
            usual = 0 if job.generated else self.speed.prompt_tokens
            tokens += max(job.arrival.prompt_tokens + job.generated - usual, 0)
            end = self.steps + max(job.arrival.tokens - job.generated, 1)
            heapq.heappush(self._ends, (end, next(order), job))
        if not self.running:
            self.work_s = 0.0
            return
        self.step_s = self.speed.step_s(len(self.running)) + tokens / self.speed.prefill_tokens_per_s
        self.work_s = self.step_s

    def end_step(self, now: float) -> list[Job]:
        """Counts a token for each that runs. Returns the jobs that ended."""
        self.steps += 1
        self.generated += len(self.running)
        for job in self._starting:
            if job.first_s is None and job in self.running:
                job.first_s = now
        self._starting.clear()
        ended = []
        while self._ends and self._ends[0][0] <= self.steps:
            end, _, job = heapq.heappop(self._ends)
            if job in self.running and job.since is not None and self._is_end(job, end):
                job.end_s = now
                self.running.remove(job)
                ended.append(job)
        return ended

    def clear(self) -> list[Job]:
        """Drops everything. Returns the dropped jobs in order of arrival."""
        dropped = sorted(self.jobs(), key=lambda job: job.arrival.at)
        for jobs in (self.running, self.waiting, self._starting, self._ends):
            jobs.clear()
        self.work_s = 0.0
        return dropped

    def _is_end(self, job: Job, end: int) -> bool:
        assert job.since is not None
        return end == job.since + max(job.arrival.tokens - job.generated, 1)


def simulate(
    arrivals: Iterable[Arrival], speeds: Mapping[str, EngineSpeed], interference: float, router: Router
) -> list[Job]:
    """Returns every request with its times, in order of arrival; `arrivals` are in that order.

    While several engines work, a step of each takes `interference` times the others' steps longer.
    """
    node = Node(speeds, interference, router)
    jobs = []
    for arrival in arrivals:
        node.run(arrival.at)
        jobs.append(node.arrive(arrival))
    node.run(math.inf)
    return jobs


class Node:
    """The engines that slow each other down, and their time.

    Several nodes share a clock: each goes on at its `find_next`, and runs to the time of what arrives there.
    """

    def __init__(self, speeds: Mapping[str, EngineSpeed], interference: float, router: Router) -> None:
        self._engines = {name: Engine(speed) for name, speed in speeds.items()}
        self._interference = interference
        self._router = router
        self._now, self._beat_at = 0.0, router.beat_s
        self._order = itertools.count()

    @property
    def in_flight(self) -> int:
        return sum(engine.in_flight for engine in self._engines.values())

    def run(self, until: float) -> list[Job]:
        """Lets the engines work until then; without an end, until nothing is in flight. Returns the jobs that ended."""
        ended = list[Job]()
        while self._now < until and (until < math.inf or self.in_flight):
            ended += self.go_on(until)
        return ended

    def find_next(self) -> float:
        """Returns when `go_on` arrives at the next event, if nothing else happens before."""
        return min([self._beat_at, *(self._now + engine.work_s / pace for engine, pace in self._find_paces())])

    def go_on(self, until: float = math.inf) -> list[Job]:
        """Goes on to the next event: the end of a step, a beat, or `until`. Returns the jobs that ended."""
        paces = self._find_paces()
        ends = (engine.work_s / pace for engine, pace in paces)
        elapsed_s = min(*ends, until - self._now, self._beat_at - self._now)
        self._now += elapsed_s
        ended = []
        for engine, pace in paces:
            engine.work_s -= elapsed_s * pace
            if engine.work_s <= TINY_S:
                ended += engine.end_step(self._now)
                engine.begin_step(self._order)
        if self._beat_at <= self._now + TINY_S:
            self._beat()
        return ended

    def arrive(self, arrival: Arrival) -> Job:
        job = Job(arrival)
        self._put(job, self._router.place(job, self._engines, self._now))
        return job

    def clear(self) -> list[Job]:
        """Drops everything, as a node that dies. Returns the dropped jobs."""
        return [job for engine in self._engines.values() for job in engine.clear()]

    def _find_paces(self) -> list[tuple[Engine, float]]:
        """Returns the engines at work, and how fast each is beside the others: 1 if it were alone."""
        busy = [engine for engine in self._engines.values() if engine.work_s > 0]
        total_s = sum(engine.step_s for engine in busy)
        return [
            (engine, engine.step_s / (engine.step_s + self._interference * (total_s - engine.step_s)))
            for engine in busy
        ]

    def _beat(self) -> None:
        self._beat_at += self._router.beat_s
        for job, name in self._router.beat(self._engines, self._now):
            self._engines[job.engine].leave(job)
            self._put(job, name)

    def _put(self, job: Job, name: str) -> None:
        job.engine, engine = name, self._engines[name]
        engine.waiting.append(job)
        if engine.work_s <= 0:
            engine.begin_step(self._order)
