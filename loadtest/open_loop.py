"""Requests sent when they are due, whether or not those before were answered; latencies count from then.

In: a sender, moments. Out: every answer. A connection carries one request at a time; where none is idle, one is opened,
and the time that takes is the request's.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.answer import Answer
from loadtest.connection import Connection, clock
from loadtest.judge import Judge
from loadtest.sender import Sender
from loadtest.work import Asked, Place

START_S = 0.1  # before the first is due


@dataclass(frozen=True, slots=True)
class OpenRecording:
    """Answers in the order due. Times are those of the answers' clock."""

    began_at: float
    answers: tuple[Answer, ...]


@dataclass(slots=True)
class OpenLoop:
    """Runs once."""

    sender: Sender
    judge: Judge
    tokens: int
    backend: str = ""
    _idle: list[Connection] = field(default_factory=list)
    _open: set[Connection] = field(default_factory=set)

    async def run(self, due: Sequence[float]) -> OpenRecording:
        """Until the last answer. Raises CalibrationError at the first that is not the work asked for."""
        began_at = clock() + START_S
        answers: list[Answer] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, offset in enumerate(due):
                    answer = Answer(due_at=began_at + offset)
                    answers.append(answer)
                    await asyncio.sleep(max(0.0, began_at + offset - clock()))
                    group.create_task(self._ask(answer, number))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            for connection in self._open:
                connection.abort()
        return OpenRecording(began_at, tuple(answers))

    async def _ask(self, answer: Answer, number: int) -> None:
        asked = Asked(self.backend, Place(0, 0, number), self.tokens)
        connection = await self._take()
        await self.sender.send(connection, asked, answer)
        self.judge.accept(answer, asked)
        self._idle.append(connection)

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._open.discard(connection)
        connection = await self.sender.connect()
        self._open.add(connection)
        return connection
