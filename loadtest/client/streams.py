"""Some of a cell's streams. Each sends its next request as soon as the one before is answered, until it is cancelled.

In: streams and the lengths of their first answers. Out: every answer, and how the client itself fared. Owns its
connections.
"""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.connection import Connection, clock
from loadtest.client.prompts import PromptId, Work
from loadtest.client.recording import Tick
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer

TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class StreamsJob:
    """The streams of one process. `first_tokens`: length of the first answer by stream. `first_stream` is added to a
    stream's number when its prompts are written.
    """

    backend: str
    pair: int
    tokens: int
    first_tokens: Mapping[int, int]
    first_stream: int = 0


@dataclass(frozen=True, slots=True)
class StreamsReport:
    """What the streams of one process observed. `checked`: answers that passed its gate."""

    answers: tuple[StreamedAnswer, ...]
    ticks: tuple[Tick, ...]
    checked: int


def split_streams(lengths: Sequence[int], processes: int) -> list[dict[int, int]]:
    """Deals streams and the lengths of their first answers out to processes in turn; the last stream to the first.

    A stream goes to the same process on either backend, because that process compares the prompts' token counts.
    """
    parts: list[dict[int, int]] = [{} for _ in range(processes)]
    for stream, length in enumerate(lengths):
        parts[(len(lengths) - 1 - stream) % processes][stream] = length
    return parts


def _ignore(_stream: int, _answer: StreamedAnswer) -> None:
    pass


@dataclass(slots=True)
class Streams:
    """The streams of one process, which run once. `process`: number of this process, written into its ticks."""

    sender: Sender
    gate: AnswerGate
    job: StreamsJob
    process: int = 0
    new_answer: type[StreamedAnswer] = StreamedAnswer
    answers: list[StreamedAnswer] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)

    async def run(self, on_answer: Callable[[int, StreamedAnswer], None] = _ignore) -> None:
        """Runs until it is cancelled. Raises an ExceptionGroup at the first answer that is not the requested work."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            for stream, first_tokens in self.job.first_tokens.items():
                group.create_task(self._stream(stream, first_tokens, on_answer))

    @property
    def started(self) -> tuple[StreamedAnswer, ...]:
        """The answers without those cut off before their request was sent: they were never in flight."""
        return tuple(answer for answer in self.answers if answer.started_at)

    async def _stream(self, stream: int, first_tokens: int, on_answer: Callable[[int, StreamedAnswer], None]) -> None:
        job = self.job
        connection = await self.sender.connect()
        try:
            for number in itertools.count():
                tokens = job.tokens if number else first_tokens
                connection = connection if connection.is_open else await self.sender.connect()
                prompt = PromptId(job.pair, job.first_stream + stream, number)
                on_answer(stream, await self._request(connection, Work(job.backend, prompt, tokens)))
        finally:
            connection.abort()

    async def _request(self, connection: Connection, work: Work) -> StreamedAnswer:
        answer = self.new_answer()
        self.answers.append(answer)
        await self.sender.send(connection, work, answer)
        self.gate.check(answer, work)
        return answer

    async def _tick(self) -> None:
        """Records how late this event loop is: so much may be added to every time that is measured here.

        The intervals are uneven: even ones can keep step with whatever holds the process up, and then never meet it.
        """
        while True:
            pause_s = TICK_S * random.uniform(0.5, 1.5)
            due = clock() + pause_s
            await asyncio.sleep(pause_s)
            now, load = clock(), os.getloadavg()[0] / (os.cpu_count() or 1)
            self.ticks.append(Tick(now, now - due, time.process_time(), load, self.process))
