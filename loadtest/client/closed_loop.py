"""One cell's traffic: a fixed number of streams, each sending again as soon as it is answered, until the window closes.

In: a load and a window rule. Out: a recording of every answer. Shares the streams with worker processes if it has any.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.errors import first_cause
from loadtest.client.recording import Recording
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.client.streams import Streams, StreamsJob, StreamsReport, split_streams
from loadtest.client.window import Window, WindowRule, first_lengths


class StreamRunner(Protocol):
    """Another process that runs a part of the streams (worker_pool)."""

    async def run(self, sender: Sender, job: StreamsJob) -> StreamsReport: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """One cell's load. `streams`: requests in flight. `pair` and `first_stream`: numbers that select the prompts."""

    backend: str
    streams: int
    tokens: int
    window: WindowRule
    pair: int = 0
    first_stream: int = 0


@dataclass(slots=True)
class ClosedLoop:
    """Runs one cell, once."""

    sender: Sender
    gate: AnswerGate
    load: ClosedLoad
    workers: Sequence[StreamRunner] = ()
    new_answer: type[StreamedAnswer] = StreamedAnswer
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Recording:
        """Warms up, measures, stops. Raises MeasurementError at the first answer that is not the requested work."""
        window = Window(self.load.window)
        own_job, *jobs = self._split()
        own = Streams(self.sender, self.gate, own_job, new_answer=self.new_answer)
        leader = self.load.streams - 1

        def count(stream: int, answer: StreamedAnswer) -> None:
            if answer.finished_at is None:
                return
            window.count_answer(answer.finished_at)
            if stream == leader and window.count_leader_request(answer.finished_at):
                self._closed.set()

        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(own.run(count))
                others = [
                    group.create_task(worker.run(self.sender, job))
                    for worker, job in zip(self.workers, jobs, strict=True)
                ]
                await self._closed.wait()
                running.cancel()
                for worker in self.workers:
                    worker.stop()
        except ExceptionGroup as failed:
            raise first_cause(failed) from failed
        return self._record(window, own, [task.result() for task in others])

    def _split(self) -> list[StreamsJob]:
        """Divides the streams among processes. The leading stream, which is the last one, stays in this process."""
        load = self.load
        parts = split_streams(first_lengths(load.streams, load.tokens), 1 + len(self.workers))
        return [StreamsJob(load.backend, load.pair, load.tokens, part, load.first_stream) for part in parts]

    def _record(self, window: Window, own: Streams, reports: Sequence[StreamsReport]) -> Recording:
        assert window.opened_at is not None
        assert window.closed_at is not None
        self.gate.answers += sum(report.checked for report in reports)
        answers = [*own.started, *(answer for report in reports for answer in report.answers)]
        ticks = [*own.ticks, *(tick for report in reports for tick in report.ticks)]
        in_order = sorted(answers, key=lambda answer: answer.started_at)
        return Recording(window.opened_at, window.closed_at, tuple(in_order), tuple(ticks))
