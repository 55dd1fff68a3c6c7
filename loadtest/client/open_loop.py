"""Sends requests when they are due, whether or not those before were answered; latencies count from the due time.

In: a sender, moments. Out: every answer. A request that waits for another's answer is due a while after that has ended.
A connection carries one request at a time; where none is idle, one is opened, and the time that takes counts towards
the request's latency.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.connection import Connection, clock
from loadtest.client.errors import first_cause
from loadtest.client.prompts import NO_LEAD, Lead, PromptId, Work
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer

LEAD_S = 0.1  # from the start of the loop to the moment that due times count from


@dataclass(frozen=True, slots=True)
class Due:
    """A request of an open loop: due `at` so many seconds after its beginning, with an answer of so many tokens.

    `words`: of its prompt; None for as many as the sender's. `backend`: the one it is pinned to; None: the loop's.
    `after`: index of an earlier request; it is then due `wait_s` after the end of that one's answer, whatever `at` is.
    """

    at: float
    tokens: int
    words: int | None = None
    backend: str | None = None
    lead: Lead = NO_LEAD
    after: int | None = None
    wait_s: float = 0.0


@dataclass(slots=True)
class OpenLoop:
    """One open loop, which runs once. `number`: its prompts are those of this loop alone."""

    sender: Sender
    gate: AnswerGate
    backend: str = ""
    number: int = 0
    _idle: list[Connection] = field(default_factory=list)
    _open: set[Connection] = field(default_factory=set)

    async def run(self, requests: Sequence[Due]) -> tuple[float, tuple[StreamedAnswer, ...]]:
        """Runs until the last answer. Returns the moment that they count from, by the answers' clock, and the answers
        in the order of the requests. Raises MeasurementError at the first answer that is not the requested work.
        """
        began_at = clock() + LEAD_S
        answers = tuple(StreamedAnswer(due_at=began_at + due.at) for due in requests)
        followers = _find_followers(requests)

        async def serve(index: int) -> None:
            """Sends a request and, when it is answered, those that wait for it."""
            due, answer = requests[index], answers[index]
            backend = self.backend if due.backend is None else due.backend
            prompt = PromptId(self.number, 0, index)
            await self._request(answer, Work(backend, prompt, due.tokens, due.words, due.lead))
            for follower in followers.get(index, ()):
                group.create_task(follow(follower, answer.finished_at or clock()))

        async def follow(index: int, ended_at: float) -> None:
            answers[index].due_at = due_at = ended_at + requests[index].wait_s
            await asyncio.sleep(max(0.0, due_at - clock()))
            await serve(index)

        try:
            async with asyncio.TaskGroup() as group:
                for index, due in enumerate(requests):
                    if due.after is None:
                        await asyncio.sleep(max(0.0, began_at + due.at - clock()))
                        group.create_task(serve(index))
        except ExceptionGroup as failed:
            raise first_cause(failed) from failed
        finally:
            for connection in self._open:
                connection.abort()
        return began_at, answers

    async def _request(self, answer: StreamedAnswer, work: Work) -> None:
        connection = await self._take_connection()
        await self.sender.send(connection, work, answer)
        self.gate.check(answer, work)
        self._idle.append(connection)

    async def _take_connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._open.discard(connection)
        connection = await self.sender.connect()
        self._open.add(connection)
        return connection


def _find_followers(requests: Sequence[Due]) -> Mapping[int, Sequence[int]]:
    followers: dict[int, list[int]] = defaultdict(list)
    for index, due in enumerate(requests):
        if due.after is not None:
            followers[due.after].append(index)
    return followers
