"""Other processes of this client's, for rates that one core cannot read: jobs out to them, answers back.

Messages are pickled, each with its length before it, on a helper's stdin and stdout. Times need no translation: all
processes of a machine share the clock that stamps them.
"""

import asyncio
import pickle
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from loadtest.answer import Answer
from loadtest.cell import Tick
from loadtest.errors import CalibrationError, Unreachable
from loadtest.judge import Judge
from loadtest.sender import Sender
from loadtest.streams import Job, Streams

LENGTH = struct.Struct("<Q")
END_S = 5.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """`process`: the helper's own number, from 1."""

    sender: Sender
    job: Job
    process: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a helper's streams saw. `judged`: answers that its judge let pass."""

    answers: tuple[Answer, ...]
    ticks: tuple[Tick, ...]
    judged: int


def pool(own: Streams, shares: Sequence[Share], judge: Judge) -> tuple[tuple[Answer, ...], tuple[Tick, ...]]:
    """What all processes saw, answers in order of their starts; `judge`, this process's, counts theirs as its own."""
    judge.answers += sum(share.judged for share in shares)
    answers = [*own.begun, *(answer for share in shares for answer in share.answers)]
    ticks = [*own.ticks, *(tick for share in shares for tick in share.ticks)]
    return tuple(sorted(answers, key=lambda answer: answer.started_at)), tuple(ticks)


class Helper:
    """One process, which works on one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._process, self._number = process, number
        self._out, self._in = process.stdin, process.stdout

    async def wait_until_ready(self) -> None:
        """A cell's streams begin together: none of its processes may still be starting then."""
        await self._hear()

    async def work(self, sender: Sender, job: Job) -> Share:
        """Until the job is done, or until `stop` where it has no end. Raises CalibrationError at the first answer that
        is not the work asked for.
        """
        send(self._out, Assignment(sender, job, self._number))
        said = await self._hear()
        if isinstance(said, CalibrationError):
            raise said
        assert isinstance(said, Share)
        return said

    def stop(self) -> None:
        send(self._out, None)

    async def aclose(self) -> None:
        self._out.close()
        await self._end()

    async def _hear(self) -> Any:  # Any: see receive
        try:
            return await receive(self._in)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise Unreachable(f"a process of the load tester ended by itself (status {await self._end()})") from exc

    async def _end(self) -> int:
        try:
            async with asyncio.timeout(END_S):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()


@asynccontextmanager
async def crew(helpers: int) -> AsyncIterator[tuple[Helper, ...]]:
    """So many processes beside this one, which end with the block or with this process."""
    async with AsyncExitStack() as stack:
        started = []
        for number in range(1, helpers + 1):
            pipe = asyncio.subprocess.PIPE
            command = (sys.executable, "-m", "loadtest.helper")
            helper = Helper(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe), number)
            stack.push_async_callback(helper.aclose)
            started.append(helper)
        for helper in started:
            await helper.wait_until_ready()
        yield tuple(started)


def send(writer: asyncio.StreamWriter, message: object) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    writer.write(LENGTH.pack(len(data)) + data)


async def receive(reader: asyncio.StreamReader) -> Any:  # Any: what the other side sends at this place
    """Raises IncompleteReadError when the other side is gone."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))  # from our own process, by a pipe that nobody else has
