"""`python -m loadtest.client.worker`: a load generator process, which runs jobs from stdin until that is closed."""

import asyncio
import signal
import sys

import uvloop

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.errors import MeasurementError, first_cause
from loadtest.client.message_pipe import receive, send
from loadtest.client.streams import Streams, StreamsReport


async def serve() -> None:
    """Runs jobs until stdin is closed. Ends with the first failure: nothing is measured after it."""
    reader, writer = await _open_pipes()
    gate = AnswerGate()  # one for all jobs: it compares a prompt's token count on one backend with that on the other
    send(writer, None)  # ready
    try:
        while True:
            sender, job, process = await receive(reader)
            streams, checked = Streams(sender, gate, job, process), gate.answers
            failure = await _run_until_stopped(streams, reader)
            report = StreamsReport(streams.started, tuple(streams.ticks), gate.answers - checked)
            send(writer, failure or report)
            await writer.drain()
            if failure:
                return
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # the parent process has ended


async def _run_until_stopped(streams: Streams, reader: asyncio.StreamReader) -> MeasurementError | None:
    """Runs the streams until the next message, which means stop, or until an answer is not the requested work."""
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(streams.run())
            await receive(reader)
            running.cancel()
    except ExceptionGroup as failed:
        cause = first_cause(failed)
        if isinstance(cause, MeasurementError):
            return cause
        raise cause from failed
    return None


async def _open_pipes() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent too, which then closes stdin
    uvloop.run(serve())
