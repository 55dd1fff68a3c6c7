"""What an engine makes of a closed loop, simulated step by step: the times that a cell of a calibration measures. Pure.

In: an engine's model and a cell's load. Out: a Schedule. In steps a closed loop hardly depends on how long its steps
take, so that a Schedule gives the times for any numbers near those that it was simulated with, and their slopes.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engines.physics import EngineModel, Job, Replica

Array: TypeAlias = NDArray[np.float64]
Draw: TypeAlias = Callable[[int], float]  # by the number of an answer: its way to the engine and back, of the usual one

GOLDEN = 0.6180339887  # its multiples modulo 1 are as even as can be
LEAST_ANSWERS = 8  # counted in a simulated cell, or one of each stream
LEAST_S = 2.5  # of a window, as a quick run has it: short answers come in waves that take long to even out


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: lengths in tokens, and how many are in flight."""

    prompt_tokens: int
    answer_tokens: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A loop's steps, and by how much each counts towards the mean times.

    `sequences`, `context`, `prompts` (tokens), `squared`: of each step, as in EngineModel. `to_first`: how much of each
    step an answer waits until its first token; `per_token`: how much of each step one token takes.
    """

    sequences: Array
    context: Array
    prompts: Array
    squared: Array
    to_first: Array
    per_token: Array

    def find_times(self, step_ms: Array, request_ms: float) -> tuple[float, float]:
        """Returns the milliseconds to the first token, and for each token after it."""
        return float(self.to_first @ step_ms) + request_ms, float(self.per_token @ step_ms)


@dataclass(frozen=True)  # no slots: they would lack the rows of the class that it extends
class _Recorded(EngineModel):
    """An engine that keeps what its steps have to do."""

    rows: list[tuple[float, float, float, float]] = field(default_factory=list)

    def step_ms(self, sequences: float, context: float, prompt_tokens: float = 0.0, squared: float = 0.0) -> float:
        self.rows.append((sequences, context, prompt_tokens, squared))
        return EngineModel.step_ms(self, sequences, context, prompt_tokens, squared)


class _Server:
    """One replica and its clock. `due`: when the step under way ends; None: there is none."""

    def __init__(self, engine: EngineModel) -> None:
        values = {name: getattr(engine, name) for name in EngineModel.__dataclass_fields__}
        self.engine = _Recorded(**values)
        self.replica = Replica(self.engine)
        self.began = 0.0
        self.due: float | None = None
        self.firsts: dict[Job, int] = {}  # the step that gave an answer its first token
        self.joined: dict[Job, tuple[int, float]] = {}  # the step that an answer came in, and how much of it was left

    def add(self, job: Job, now: float) -> None:
        self.replica.add(job)
        if self.due is None:
            self.joined[job] = len(self.engine.rows), 1.0
            self.begin(now)
        else:
            self.joined[job] = len(self.engine.rows) - 1, (self.due - now) / max(self.due - self.began, 1e-9)

    def begin(self, now: float) -> None:
        step_ms = self.replica.begin()
        self.began, self.due = now, now + step_ms / 1e3 if step_ms else None

    def end(self) -> list[Job]:
        assert self.due is not None
        for job in self.replica.chosen:
            self.firsts.setdefault(job, len(self.engine.rows) - 1)
        return self.replica.end(self.due)


class _Loop:
    """A closed loop as ClosedLoop runs it: first answers of staggered lengths, then a window."""

    def __init__(self, engine: EngineModel, load: Load, draw: Draw) -> None:
        self._load, self._draw, self._way_s = load, draw, engine.request_ms / 1e3
        self._servers = [_Server(engine) for _ in range(engine.replicas)]
        lengths = [-(-load.answer_tokens * (stream + 1) // load.in_flight) for stream in range(load.in_flight)]
        self._coming = [(0.0, number, length) for number, length in enumerate(lengths)]
        self._numbers = load.in_flight
        self._leader: Job | None = None
        self._opened: float | None = None
        self._inside = set[Job]()  # that came after the window was opened
        self.counted: list[tuple[_Server, Job, int]] = []  # with the step that ended each

    def run(self) -> Schedule:
        while not self._is_over():
            working = [server for server in self._servers if server.due is not None]
            server = min(working, key=lambda each: each.due or 0.0, default=None)
            if self._coming and (server is None or self._coming[0][0] <= (server.due or 0.0)):
                self._arrive()
            else:
                assert server is not None  # what does not come is being served
                self._end_step(server)
        return _weigh(self._servers, self.counted, self._load.answer_tokens)

    def _is_over(self) -> bool:
        if self._opened is None or len(self.counted) < min(self._load.in_flight, LEAST_ANSWERS):
            return False
        return max(server.began for server in self._servers) > self._opened + max(2 * self._opened, LEAST_S)

    def _arrive(self) -> None:
        now, number, length = heapq.heappop(self._coming)
        job = Job(now, self._load.prompt_tokens, length)
        if number == self._load.in_flight - 1:
            self._leader = job
        if self._opened is not None and number >= self._load.in_flight:
            self._inside.add(job)
        min(self._servers, key=lambda each: len(each.replica)).add(job, now)

    def _end_step(self, server: _Server) -> None:
        now = server.due or 0.0
        for job in server.end():
            if job is self._leader:
                self._opened = now
            if job in self._inside:
                self.counted.append((server, job, len(server.engine.rows) - 1))
            back = now + self._way_s * self._draw(self._numbers)
            heapq.heappush(self._coming, (back, self._numbers, self._load.answer_tokens))
            self._numbers += 1
        server.begin(now)


def spread_evenly(number: int) -> float:
    """Returns a factor from 0.75 to 1.25: clients are not so punctual that all answers meet the same part of a step."""
    return 0.75 + 0.5 * (number * GOLDEN % 1.0)


def simulate(engine: EngineModel, load: Load, draw: Draw = spread_evenly) -> Schedule:
    """Simulates a cell. Answers have at least two tokens."""
    return _Loop(engine, load, draw).run()


def _weigh(servers: Sequence[_Server], counted: Sequence[tuple[_Server, Job, int]], tokens: int) -> Schedule:
    starts, total = dict[_Server, int](), 0
    for server in servers:
        starts[server] = total
        total += len(server.engine.rows)
    to_first, per_token = np.zeros(total + 1), np.zeros(total + 1)  # as differences
    for server, job, ended in counted:
        start = starts[server]
        (came, left), first = server.joined[job], server.firsts[job]
        to_first[start + came] += left
        to_first[start + came + 1] += 1 - left
        to_first[start + first + 1] -= 1
        per_token[start + first + 1] += 1
        per_token[start + ended + 1] -= 1
    rows = np.array([row for server in servers for row in server.engine.rows])
    count = len(counted)
    sequences, context, prompts, squared = map(np.ascontiguousarray, rows.T)
    return Schedule(
        sequences=sequences,
        context=context,
        prompts=prompts,
        squared=squared,
        to_first=np.cumsum(to_first[:-1]) / count,
        per_token=np.cumsum(per_token[:-1]) / (count * (tokens - 1)),
    )
