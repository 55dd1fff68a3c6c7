"""One replica of an engine, step by step: a batch that steps together, and a queue before it.

In: jobs, and the times at which steps begin. Out: how long each step takes, and which jobs have tokens. Reads no clock;
the caller owns time, and lets each step end when it is due.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

from engines.physics.model import EngineModel


class Cache(Protocol):
    """A replica's prefix cache. `find` returns how many tokens of a job's prompt it holds; `keep` adds the prompt."""

    def find(self, job: "Job") -> int: ...

    def keep(self, job: "Job") -> None: ...


class Job:
    """An answer under way: a prompt, how many tokens it will have, and how many it has.

    `generated`: tokens up to the last time it joined a replica; `Replica.count` returns those of now. `first_s`,
    `end_s`: when its first and its last token came. `blocks`: hashes of its prompt's blocks, for a prefix cache.
    `cached`: how many of its tokens the cache held when it was last read.
    """

    __slots__ = (
        "at", "blocks", "cached", "end_s", "first_s", "generated", "only", "prompt_tokens", "replica", "since",
        "tokens", "unread",
    )  # fmt: skip

    def __init__(
        self, at: float, prompt_tokens: int, tokens: int, only: str | None = None, blocks: tuple[int, ...] = ()
    ) -> None:
        self.at = at
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens
        self.only = only
        self.blocks = blocks
        self.cached = 0
        self.generated = 0.0
        self.unread = prompt_tokens  # of its prompt and of what it has, when it joined
        self.since: int | None = None  # the replica's step at which it began to decode there; None: it has not
        self.replica: Replica | None = None
        self.first_s: float | None = None
        self.end_s: float | None = None

    @property
    def so_far(self) -> float:
        """How many tokens it has."""
        if self.since is None or self.replica is None:
            return self.generated
        return min(self.generated + (self.replica.steps - self.since) * self.replica.tokens_per_step, self.tokens)


class Replica:
    """`steps`: how many it has taken. `made`: tokens. `step_ms`: of the step under way, if nothing slows it down;
    0: none is.
    """

    __slots__ = (
        "_cache", "_chosen", "_decoding", "_ends", "_orders", "_queue", "context", "engine", "made", "step_ms",
        "steps", "tokens_per_step",
    )  # fmt: skip

    def __init__(self, engine: EngineModel, cache: Cache | None = None) -> None:
        self.engine = engine
        self.tokens_per_step = engine.tokens_per_step
        self.steps = 0
        self.made = 0.0
        self.context = 0.0  # tokens of KV of those that decode
        self.step_ms = 0.0
        self._cache = cache
        self._decoding: dict[Job, None] = {}  # in the order in which they began
        self._chosen: list[Job] = []  # their prompts are complete with the step under way
        self._queue: deque[Job] = deque()
        self._ends: list[tuple[int, int, Job, int]] = []  # a heap; entries of jobs that left are skipped
        self._orders = 0

    def __len__(self) -> int:
        return len(self._decoding) + len(self._chosen) + len(self._queue)

    def __iter__(self) -> Iterator[Job]:
        return chain(self._decoding, self._chosen, self._queue)

    @property
    def chosen(self) -> Sequence[Job]:
        """Those whose prompts are complete with the step under way."""
        return tuple(self._chosen)

    @property
    def decoding(self) -> int:
        """How many have had a token from this replica since they joined it."""
        return len(self._decoding)

    @property
    def waiting(self) -> int:
        """How many have prompt tokens that no step has begun to read."""
        return len(self._queue)

    def add(self, job: Job) -> None:
        job.replica, job.since = self, None
        job.unread = job.prompt_tokens + int(job.generated)
        self._queue.append(job)

    def drop(self, job: Job) -> None:
        """Takes a job out, with the tokens that it has by now."""
        had, job.generated = job.generated, job.so_far
        if job in self._decoding:
            del self._decoding[job]
            # A last step counts whole, although it gives a fraction of a token more than the job has.
            self.context -= job.prompt_tokens + had + (self.steps - (job.since or 0)) * self.tokens_per_step
        elif job in self._chosen:
            self._chosen.remove(job)
        else:
            self._queue.remove(job)
        job.since = job.replica = None

    def begin(self) -> float:
        """Begins a step with what is there. Returns its milliseconds, alone on its GPUs; 0: there is nothing to do."""
        engine = self.engine
        if engine.kv_tokens is not None and self.context > engine.kv_tokens:
            self._preempt(engine.kv_tokens)
        count = len(self._decoding)
        prompt_tokens, squared = self._choose(engine.budget_tokens - count * engine.verified)
        self.step_ms = 0.0
        if count or prompt_tokens:
            self.step_ms = engine.step_ms(count, self.context, prompt_tokens, squared)
        return self.step_ms

    def end(self, now: float) -> list[Job]:
        """Ends the step, at `now` seconds. Returns the jobs that ended with it."""
        each, count = self.tokens_per_step, len(self._decoding)
        self.steps += 1
        self.step_ms = 0.0
        self.context += count * each
        self.made += count * each + len(self._chosen)
        for job in self._chosen:
            self._begin_to_decode(job, now)
        self._chosen.clear()
        ended = []
        ends = self._ends
        while ends and ends[0][0] <= self.steps:
            _, _, job, since = heapq.heappop(ends)
            if job.since == since and job in self._decoding:
                job.end_s = now
                self.drop(job)
                ended.append(job)
        return ended

    def clear(self) -> list[Job]:
        """Drops everything. Returns what was there."""
        dropped = list(self)
        for job in dropped:
            self.drop(job)
        self.step_ms = 0.0
        return dropped

    def _choose(self, budget: int) -> tuple[int, float]:
        """Takes prompt tokens from the queue, in order. Returns how many, and the sum of m * (2c + m)."""
        total, squared = 0, 0.0
        while self._queue and budget > 0 and self._has_room(job := self._queue[0]):
            whole = job.prompt_tokens + int(job.generated)
            if self._cache is not None and job.unread == whole:
                job.cached = min(self._cache.find(job), whole - 1)
                job.unread = whole - job.cached
            taken = min(budget, job.unread)
            squared += taken * (2.0 * (whole - job.unread) + taken)
            total += taken
            budget -= taken
            job.unread -= taken
            if job.unread:
                break
            self._chosen.append(self._queue.popleft())
        return total, squared

    def _preempt(self, kv_tokens: int) -> None:
        """Sends back those that began last until the others have room; they are prefilled again, as in vLLM."""
        while self.context > kv_tokens and len(self._decoding) > 1:
            job = next(reversed(self._decoding))
            self.drop(job)
            self.add(job)
            self._queue.rotate(1)  # before all that waits

    def _has_room(self, job: Job) -> bool:
        """Whether the engine may begin it now: a place, and KV for its prompt."""
        engine = self.engine
        if len(self._decoding) + len(self._chosen) >= engine.max_sequences:
            return False
        if engine.kv_tokens is None or not (self._decoding or self._chosen):
            return True
        coming = sum(each.prompt_tokens + each.generated for each in self._chosen)
        return self.context + coming + job.prompt_tokens + job.generated <= engine.kv_tokens

    def _begin_to_decode(self, job: Job, now: float) -> None:
        if self._cache is not None:
            self._cache.keep(job)
        job.generated += 1
        job.since = self.steps
        if job.first_s is None:
            job.first_s = now
        self._decoding[job] = None
        self.context += job.prompt_tokens + job.generated
        left = job.tokens - job.generated
        self._orders += 1
        end = self.steps + max(-int(-left // self.tokens_per_step), 0)
        heapq.heappush(self._ends, (end, self._orders, job, job.since))
