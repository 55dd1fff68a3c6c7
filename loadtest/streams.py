"""Some of a cell's streams, each asking again the moment it is answered, until whoever started them has enough, or
each has asked as often as it should.

In: streams and the lengths of their first answers. Out: every answer, and how the client fared. Owns its connections.
"""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.answer import Answer
from loadtest.cell import Tick
from loadtest.connection import Connection, clock
from loadtest.judge import Judge
from loadtest.sender import Sender
from loadtest.work import Asked, Place

TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """`first_tokens` by stream. `first_stream` is added to a stream's number for its prompts. `requests` of each
    stream; None: until it is cancelled.
    """

    backend: str
    pair: int
    tokens: int
    first_tokens: Mapping[int, int]
    first_stream: int = 0
    requests: int | None = None


def deal(lengths: Sequence[int], hands: int) -> list[dict[int, int]]:
    """Streams and the lengths of their first answers to so many processes in turn, the last stream to the first one.

    The same streams go to the same process on either backend, whose prompts it holds against each other's.
    """
    parts: list[dict[int, int]] = [{} for _ in range(hands)]
    for stream, length in enumerate(lengths):
        parts[(len(lengths) - 1 - stream) % hands][stream] = length
    return parts


def _ignore(_stream: int, _answer: Answer) -> None:
    pass


@dataclass(slots=True)
class Streams:
    """Runs once. `process` tells this process's ticks from those of others."""

    sender: Sender
    judge: Judge
    job: Job
    process: int = 0
    new_answer: type[Answer] = Answer
    answers: list[Answer] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)

    async def run(self, on_answer: Callable[[int, Answer], None] = _ignore) -> None:
        """Until the job is done or it is cancelled. Raises an ExceptionGroup at the first answer that is not the work
        asked for.
        """
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(self._tick())
            async with asyncio.TaskGroup() as streams:
                for stream, first_tokens in self.job.first_tokens.items():
                    streams.create_task(self._stream(stream, first_tokens, on_answer))
            if self.job.requests is not None:  # else there is no end to it, also for a process without a stream
                ticking.cancel()

    @property
    def begun(self) -> tuple[Answer, ...]:
        """One cut off before its request was sent has no start; it was never in flight."""
        return tuple(answer for answer in self.answers if answer.started_at)

    async def _stream(self, stream: int, first_tokens: int, on_answer: Callable[[int, Answer], None]) -> None:
        job = self.job
        connection = await self.sender.connect()
        try:
            for number in itertools.count() if job.requests is None else range(job.requests):
                tokens = job.tokens if number else first_tokens
                connection = connection if connection.is_open else await self.sender.connect()
                place = Place(job.pair, job.first_stream + stream, number)
                on_answer(stream, await self._ask(connection, Asked(job.backend, place, tokens)))
        finally:
            connection.abort()

    async def _ask(self, connection: Connection, asked: Asked) -> Answer:
        answer = self.new_answer()
        self.answers.append(answer)
        await self.sender.send(connection, asked, answer)
        self.judge.accept(answer, asked)
        return answer

    async def _tick(self) -> None:
        """How late this very loop is: what it adds to every time that is measured here.

        At uneven intervals: even ones can keep step with whatever holds the process up, and then never meet it.
        """
        while True:
            pause_s = TICK_S * random.uniform(0.5, 1.5)
            due = clock() + pause_s
            await asyncio.sleep(pause_s)
            now, load = clock(), os.getloadavg()[0] / (os.cpu_count() or 1)
            self.ticks.append(Tick(now, now - due, time.process_time(), load, self.process))


def find_cause(failure: BaseException) -> BaseException:
    """The first fault of a group; the others are streams that fell with it."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
