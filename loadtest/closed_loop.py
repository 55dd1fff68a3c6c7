"""One cell's traffic: so many streams, each asking again the moment it is answered, until the window closes.

In: a backend, a level, a plan. Out: a recording of every answer. Owns the cell's connections and closes them all.
"""

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field

from loadtest.answer import Answer
from loadtest.cell import Recording, Tick
from loadtest.connection import Connection, clock
from loadtest.judge import Judge
from loadtest.plan import Pair, Plan
from loadtest.sender import Sender
from loadtest.window import Window, first_lengths
from loadtest.work import Asked, Place

TICK_S = 0.05


@dataclass(slots=True)
class ClosedLoop:
    """Runs one cell, once."""

    sender: Sender
    judge: Judge
    plan: Plan
    pair: Pair
    backend: str
    first_stream: int = 0
    new_answer: type[Answer] = Answer
    _answers: list[Answer] = field(default_factory=list)
    _ticks: list[Tick] = field(default_factory=list)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Recording:
        """Warm up, measure, leave. Raises CalibrationError at the first answer that is not the work asked for."""
        window = Window(self.plan.settle_requests, self.plan.window_requests, self.plan.window_s)
        lengths = first_lengths(self.pair.level, self.plan.tokens)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._tick())]
                for stream, length in enumerate(lengths):
                    leads = window if stream == len(lengths) - 1 else None
                    tasks.append(group.create_task(self._stream(stream, length, leads)))
                await self._closed.wait()
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as group_error:
            raise _find_cause(group_error) from group_error
        return self._record(window)

    async def _stream(self, stream: int, first_tokens: int, window: Window | None) -> None:
        connection = await self.sender.connect()
        try:
            for number in itertools.count():
                tokens = self.plan.tokens if number else first_tokens
                connection = connection if connection.is_open else await self.sender.connect()
                answer = await self._ask(
                    connection, Asked(self.backend, Place(self.pair.number, self.first_stream + stream, number), tokens)
                )
                if window and answer.finished_at is not None and window.pass_request(answer.finished_at):
                    self._closed.set()
        finally:
            connection.abort()

    async def _ask(self, connection: Connection, asked: Asked) -> Answer:
        answer = self.new_answer()
        self._answers.append(answer)
        await self.sender.send(connection, asked, answer)
        self.judge.accept(answer, asked)
        return answer

    async def _tick(self) -> None:
        """How late this very loop is: what it adds to every time that is measured here."""
        while True:
            due = clock() + TICK_S
            await asyncio.sleep(TICK_S)
            now = clock()
            self._ticks.append(Tick(now, now - due, time.process_time(), os.getloadavg()[0] / (os.cpu_count() or 1)))

    def _record(self, window: Window) -> Recording:
        assert window.opened_at is not None
        assert window.closed_at is not None
        # One cut off before its request was sent has no start; it was never in flight.
        answers = tuple(answer for answer in self._answers if answer.started_at)
        return Recording(self.backend, self.pair, window.opened_at, window.closed_at, answers, tuple(self._ticks))


def _find_cause(failure: BaseException) -> BaseException:
    """The first fault; the others are streams that fell with it."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
