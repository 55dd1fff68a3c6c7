"""When each token of each request may leave, so that an engine is as fast as its physical model.

In: arrivals, departures and the time. Out: how many tokens are due, in order of their due times. Sans-I/O: it reads no
clock and never sleeps.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

from engines.physics import EngineModel, Job, Replica
from engines.prefix_cache import PrefixCache, hash_blocks

GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples are spread evenly over [0, 1)


class Neighbours(Protocol):
    """The other engines on the same GPUs. `note` takes this engine's longest step under way, alone, in seconds;
    `longest_s` returns theirs.
    """

    def note(self, step_s: float) -> None: ...

    def longest_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SharedNode:
    """A step that begins while `neighbours` work takes `interference` times its own time longer."""

    neighbours: Neighbours
    interference: float


class Due(NamedTuple):
    """Tokens of one request that may leave. `cached`: prompt tokens that were not read."""

    request_id: str
    tokens: int
    cached: int


class Counts(NamedTuple):
    """Since the start. `drafts`: steps of sequences that decode; `accepted`: their tokens beyond one a step."""

    steps: int
    drafts: int
    accepted: int
    queried: int
    found: int


class PacedJob(Job):
    """`phase`: what its tokens are ahead of the mean, below one. `due`: tokens that may leave."""

    __slots__ = ("due", "phase", "request_id")

    def __init__(self, request_id: str, at: float, lengths: tuple[int, int], phase: float, blocks: tuple[int, ...]):
        super().__init__(at, *lengths, blocks=blocks)
        self.request_id = request_id
        self.phase = phase
        self.due = 0


Event: TypeAlias = tuple[float, int, Replica | PacedJob]  # when a step ends or a job joins, and an order


class Pacer:
    """The engine's replicas, stepped as time goes on: a step that ends gives its sequences their tokens, and the next
    begins at once.

    A step's end follows from its beginning, never from the time of a call, so lateness does not add up. Where a step
    gives 2.5 tokens in the mean, a sequence gets 2 and 3 in turn, each sequence at a point of its own in the turn.
    Half of `request_ms` passes before a request joins a replica, half before its tokens leave.
    """

    def __init__(self, engine: EngineModel, shared: SharedNode | None = None, *, caches_prefixes: bool = False) -> None:
        self.engine = engine
        self.caches_prefixes = caches_prefixes
        self._half_s = engine.request_ms / 2e3
        self._shared = shared
        self._caches = [PrefixCache(engine.kv_tokens or 0) for _ in range(engine.replicas if caches_prefixes else 0)]
        self.replicas = [Replica(engine, cache) for cache in self._caches or (None,) * engine.replicas]
        self._jobs: dict[str, PacedJob] = {}
        self._events: list[Event] = []  # a heap
        self._leaving: deque[tuple[float, list[Due]]] = deque()
        self._order = 0
        self._drafts = self._accepted = 0

    def __repr__(self) -> str:
        return f"<Pacer replicas={len(self.replicas)} running={self.running} waiting={self.waiting}>"

    @property
    def running(self) -> int:
        return sum(len(replica) - replica.waiting for replica in self.replicas)

    @property
    def waiting(self) -> int:
        return len(self._jobs) - self.running

    @property
    def context(self) -> int:
        """Tokens of KV of all that decode."""
        return int(sum(replica.context for replica in self.replicas))

    @property
    def counts(self) -> Counts:
        return Counts(
            steps=sum(replica.steps for replica in self.replicas),
            drafts=self._drafts,
            accepted=self._accepted,
            queried=sum(cache.queried for cache in self._caches),
            found=sum(cache.found for cache in self._caches),
        )

    def arrive(self, request_id: str, prompt: Sequence[int], tokens: int, now: float) -> None:
        """A request has arrived that has so many tokens at most. Call `advance(now)` first."""
        self._order += 1
        blocks = hash_blocks(prompt) if self._caches else ()
        job = PacedJob(request_id, now, (len(prompt), tokens), self._order * GOLDEN % 1, blocks)
        self._jobs[request_id] = job
        self._push(now + self._half_s, job)

    def leave(self, request_id: str) -> None:
        """A request was cancelled, or has ended before its last token; harmless if it has ended."""
        job = self._jobs.pop(request_id, None)
        if job is not None and job.replica is not None:
            job.replica.drop(job)

    def advance(self, now: float) -> list[Due]:
        """Goes on to `now`. Returns what is due, in order of due times; of one time in order of the replica's jobs."""
        while self._events and self._events[0][0] <= now:
            at, _, subject = heapq.heappop(self._events)
            if isinstance(subject, Replica):
                self._end_step(subject, at)
            elif self._jobs.get(subject.request_id) is subject:  # else it has left
                self._join(subject, at)
        due = list[Due]()
        while self._leaving and self._leaving[0][0] <= now:
            due += self._leaving.popleft()[1]
        return due

    def next_due(self) -> float:
        """The earliest time at which `advance` has something to do; infinity if only another call can change that."""
        step_s = self._events[0][0] if self._events else math.inf
        return min(step_s, self._leaving[0][0]) if self._leaving else step_s

    def _join(self, job: PacedJob, at: float) -> None:
        replica = min(self.replicas, key=len)
        replica.add(job)
        if not replica.step_ms:
            self._begin_step(replica, at)

    def _begin_step(self, replica: Replica, at: float) -> None:
        step_s = replica.begin() / 1e3
        if self._shared is not None:
            self._shared.neighbours.note(max(each.step_ms for each in self.replicas) / 1e3)
            if step_s:
                step_s *= 1 + self._shared.interference * (self._shared.neighbours.longest_s() > 0)
        if step_s:
            self._push(at + step_s, replica)

    def _end_step(self, replica: Replica, at: float) -> None:
        decoding = replica.decoding
        ended = replica.end(at)
        due = [self._give(job) for job in (*islice(replica, replica.decoding), *ended) if isinstance(job, PacedJob)]
        self._drafts += decoding
        self._accepted += sum(each.tokens for each in due) - len(due)
        self._leaving.append((at + self._half_s, due))
        self._begin_step(replica, at)

    def _give(self, job: PacedJob) -> Due:
        has = job.tokens if job.end_s is not None else min(int(job.so_far + job.phase), job.tokens)
        given, job.due = has - job.due, has
        if has == job.tokens:
            self.leave(job.request_id)
        return Due(job.request_id, given, job.cached)

    def _push(self, at: float, subject: Replica | PacedJob) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, subject))
