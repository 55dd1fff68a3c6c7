"""One cell's traffic: so many streams, each asking again the moment it is answered, until the window closes.

In: a backend, a level, a plan. Out: a recording of every answer. Shares the streams with helpers where there are some.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.answer import Answer
from loadtest.cell import Recording
from loadtest.crew import Helper, Share, pool
from loadtest.judge import Judge
from loadtest.plan import Pair, Plan
from loadtest.sender import Sender
from loadtest.streams import Job, Streams, deal, find_cause
from loadtest.window import Window, first_lengths


@dataclass(slots=True)
class ClosedLoop:
    """Runs one cell, once. `helpers`: other processes of this client's, which take a part of the streams each."""

    sender: Sender
    judge: Judge
    plan: Plan
    pair: Pair
    backend: str
    first_stream: int = 0
    new_answer: type[Answer] = Answer
    helpers: Sequence[Helper] = ()
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Recording:
        """Warm up, measure, leave. Raises CalibrationError at the first answer that is not the work asked for."""
        plan = self.plan
        window = Window(plan.settle_requests, plan.window_requests, plan.window_s, plan.window_answers)
        jobs = self._share_out()
        own = Streams(self.sender, self.judge, jobs[0], new_answer=self.new_answer)
        leader = self.pair.level - 1

        def watch(stream: int, answer: Answer) -> None:
            if answer.finished_at is None:
                return
            window.pass_answer(answer.finished_at)
            if stream == leader and window.pass_request(answer.finished_at):
                self._closed.set()

        try:
            async with asyncio.TaskGroup() as group:
                mine = group.create_task(own.run(watch))
                theirs = [
                    group.create_task(helper.work(self.sender, job))
                    for helper, job in zip(self.helpers, jobs[1:], strict=True)
                ]
                await self._closed.wait()
                mine.cancel()
                for helper in self.helpers:
                    helper.stop()
        except ExceptionGroup as group_error:
            raise find_cause(group_error) from group_error
        return self._record(window, own, [task.result() for task in theirs])

    def _share_out(self) -> list[Job]:
        """The leading stream, which is the last one, here."""
        parts = deal(first_lengths(self.pair.level, self.plan.tokens), 1 + len(self.helpers))
        return [Job(self.backend, self.pair.number, self.plan.tokens, part, self.first_stream) for part in parts]

    def _record(self, window: Window, own: Streams, shares: Sequence[Share]) -> Recording:
        assert window.opened_at is not None
        assert window.closed_at is not None
        answers, ticks = pool(own, shares, self.judge)
        return Recording(self.backend, self.pair, window.opened_at, window.closed_at, answers, ticks)
