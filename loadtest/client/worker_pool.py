"""Further load generator processes, for rates that one core cannot read: jobs out to them, answers back.

Times need no translation: all processes of a machine share the clock that stamps them.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from loadtest.client.errors import MeasurementError, Unreachable
from loadtest.client.message_pipe import receive, send
from loadtest.client.sender import Sender
from loadtest.client.streams import StreamsJob, StreamsReport

EXIT_TIMEOUT_S = 5.0


class Worker:
    """One process, which runs one job at a time. `number`: its number among the workers, from 1."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._process, self._number = process, number
        self._out, self._in = process.stdin, process.stdout

    async def wait_until_ready(self) -> None:
        """Waits for the process. A cell's streams begin together: no process may still be starting then."""
        await self._receive()

    async def run(self, sender: Sender, job: StreamsJob) -> StreamsReport:
        """Runs a job until `stop`. Raises MeasurementError at the first answer that is not the requested work."""
        send(self._out, (sender, job, self._number))
        reply = await self._receive()
        if isinstance(reply, MeasurementError):
            raise reply
        assert isinstance(reply, StreamsReport)
        return reply

    def stop(self) -> None:
        send(self._out, None)

    async def aclose(self) -> None:
        self._out.close()
        await self._wait_for_exit()

    async def _receive(self) -> Any:  # Any: see message_pipe.receive
        try:
            return await receive(self._in)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            status = await self._wait_for_exit()
            raise Unreachable(f"a process of the load tester ended by itself (status {status})") from exc

    async def _wait_for_exit(self) -> int:
        """Returns the exit status; kills a process that has not ended after EXIT_TIMEOUT_S."""
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()


@asynccontextmanager
async def worker_pool(size: int) -> AsyncIterator[tuple[Worker, ...]]:
    """Starts `size` further processes, which end with the block or with this process."""
    async with AsyncExitStack() as stack:
        workers = []
        for number in range(1, size + 1):
            pipe = asyncio.subprocess.PIPE
            command = (sys.executable, "-m", "loadtest.client.worker")
            worker = Worker(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe), number)
            stack.push_async_callback(worker.aclose)
            workers.append(worker)
        for worker in workers:
            await worker.wait_until_ready()
        yield tuple(workers)
