"""A node's engines and their requests in simulated time: a step of a replica is one event, however many it serves.

In: engines by their models, arrivals, and a router that places and moves. Out: when each answer ended. The clock is the
simulation's own; nothing here sleeps, and one seed of arrivals gives one result.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from engines.physics import EngineModel, Job, Replica

MakeReplica: TypeAlias = Callable[[EngineModel], Replica]
Event: TypeAlias = tuple[float, int, "Engine", Replica | Job]  # when, an order, where, and what: a step's end or a job


class Router(Protocol):
    """Decides where requests run. `beat` is called every `beat_s` and returns jobs with the engine to move each to.

    `began` is called when an engine has prefilled a job and returns its first token there, `ended` when it has ended.
    """

    beat_s: float

    def place(self, job: Job, engines: "Mapping[str, Engine]", now: float) -> str: ...

    def began(self, job: Job, engine: str, now: float) -> None: ...

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: "Mapping[str, Engine]", now: float) -> Iterable[tuple[Job, str]]: ...


class Engine:
    """One engine: its replicas, and what is on its way to them."""

    def __init__(self, name: str, model: EngineModel, make_replica: MakeReplica = Replica) -> None:
        self.name = name
        self.model = model
        self.replicas = [make_replica(model) for _ in range(model.replicas)]
        self.coming = dict[Job, None]()

    @property
    def in_flight(self) -> int:
        return sum(map(len, self.replicas)) + len(self.coming)

    @property
    def decoding(self) -> int:
        return sum(replica.decoding for replica in self.replicas)

    @property
    def generated(self) -> float:
        return sum(replica.made for replica in self.replicas)

    @property
    def context(self) -> float:
        """Tokens of KV of all that decode."""
        return sum(replica.context for replica in self.replicas)

    def jobs(self) -> Iterator[Job]:
        return itertools.chain(*self.replicas, self.coming)

    def leave(self, job: Job) -> None:
        if job.replica is not None:
            job.replica.drop(job)
        else:
            del self.coming[job]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node's engines by name. A step that begins while others work takes `interference` times its own time longer. A
    job that moves reaches its engine `move_s` later.
    """

    engines: Mapping[str, EngineModel]
    interference: float = 0.0
    move_s: float = 0.0
    make_replica: MakeReplica = Replica


def simulate(jobs: Sequence[Job], spec: NodeSpec, router: Router) -> Sequence[Job]:
    """Serves jobs in order of arrival, and returns them with their times."""
    node = Node(spec, router)
    for job in jobs:
        node.run(job.at)
        node.arrive(job)
    node.run(math.inf)
    return jobs


class Node:
    """The engines that slow each other down, and their time.

    Several nodes share a clock: each goes on at its `find_next`, and runs to the time of what arrives there.
    """

    def __init__(self, spec: NodeSpec, router: Router) -> None:
        self._engines = {name: Engine(name, model, spec.make_replica) for name, model in spec.engines.items()}
        self._interference = spec.interference
        self._move_s = spec.move_s
        self._router = router
        self._now, self._beat_at = 0.0, router.beat_s
        self._events: list[Event] = []
        self._orders = itertools.count()

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
        return min(self._beat_at, self._events[0][0]) if self._events else self._beat_at

    def go_on(self, until: float = math.inf) -> list[Job]:
        """Goes on to the next event: the end of a step, a job's coming, a beat, or `until`. Returns what ended."""
        at = self.find_next()
        if at > until:
            self._now = until
            return []
        self._now = at
        if at == self._beat_at:
            self._beat()
            return []
        _, _, engine, subject = heapq.heappop(self._events)
        if isinstance(subject, Replica):
            return self._end_step(engine, subject)
        if subject in engine.coming:  # else it has left already
            self._join(engine, subject)
        return []

    def arrive(self, job: Job) -> Job:
        self._send(job, self._router.place(job, self._engines, self._now), 0.0)
        return job

    def clear(self) -> list[Job]:
        """Drops everything, as a node that dies. Returns the dropped jobs in order of arrival."""
        dropped = list[Job]()
        for engine in self._engines.values():
            dropped += engine.coming
            engine.coming.clear()
            for replica in engine.replicas:
                dropped += replica.clear()
        self._events.clear()
        return sorted(dropped, key=lambda job: job.at)

    def _send(self, job: Job, name: str, later_s: float) -> None:
        engine = self._engines[name]
        engine.coming[job] = None
        self._push(self._now + later_s + engine.model.request_ms / 2e3, engine, job)

    def _join(self, engine: Engine, job: Job) -> None:
        del engine.coming[job]
        replica = min(engine.replicas, key=len)
        replica.add(job)
        if not replica.step_ms:
            self._begin_step(engine, replica)

    def _begin_step(self, engine: Engine, replica: Replica) -> None:
        if step_ms := replica.begin():
            slower = 1 + self._interference if self._interference and self._works_beside(engine) else 1.0
            self._push(self._now + step_ms * slower / 1e3, engine, replica)

    def _works_beside(self, engine: Engine) -> bool:
        return any(
            replica.step_ms for other in self._engines.values() if other is not engine for replica in other.replicas
        )

    def _end_step(self, engine: Engine, replica: Replica) -> list[Job]:
        beginning = replica.chosen
        ended = replica.end(self._now)
        for job in beginning:
            self._router.began(job, engine.name, self._now)
        for job in ended:
            assert job.end_s is not None  # the replica has ended it
            job.end_s += engine.model.request_ms / 2e3
            self._router.ended(job, engine.name, self._now)
        self._begin_step(engine, replica)
        return ended

    def _beat(self) -> None:
        self._beat_at += self._router.beat_s
        for job, name in self._router.beat(self._engines, self._now):
            next(engine for engine in self._engines.values() if _holds(engine, job)).leave(job)
            self._send(job, name, self._move_s)

    def _push(self, at: float, engine: Engine, subject: Replica | Job) -> None:
        heapq.heappush(self._events, (at, next(self._orders), engine, subject))


def _holds(engine: Engine, job: Job) -> bool:
    return job in engine.coming or job.replica in engine.replicas
