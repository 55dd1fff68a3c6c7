"""`python -m loadtest.helper`: the other end of crew.Helper; works on jobs that come on stdin until it is closed."""

import asyncio
import signal
import sys

import uvloop

from loadtest.crew import Assignment, Share, receive, send
from loadtest.errors import CalibrationError
from loadtest.judge import Judge
from loadtest.streams import Streams, find_cause


async def serve() -> None:
    """Ends with the first failure: after that nothing is measured any more."""
    reader, writer = await _open_pipes()
    judge = Judge()  # one for all jobs: it holds a prompt's size on one backend against that on the other
    send(writer, None)  # it is ready
    try:
        while True:
            said = await _work(await receive(reader), judge, reader)
            send(writer, said)
            await writer.drain()
            if isinstance(said, CalibrationError):
                return
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # whom we work for is gone


async def _work(assignment: Assignment, judge: Judge, reader: asyncio.StreamReader) -> Share | CalibrationError:
    """Until it is done, until the next message, which says to stop, or until an answer is not what was asked for."""
    judged = judge.answers
    streams = Streams(assignment.sender, judge, assignment.job, assignment.process)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = (group.create_task(streams.run()), group.create_task(receive(reader)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except ExceptionGroup as failed:
        cause = find_cause(failed)
        if isinstance(cause, CalibrationError):
            return cause
        raise cause from failed
    return Share(streams.begun, tuple(streams.ticks), judge.answers - judged)


async def _open_pipes() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is its parent's affair, which then closes stdin
    uvloop.run(serve())
