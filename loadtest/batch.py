"""One level's requests as a batch: all streams begin together, each asks so many times, and then it is over.

In: a level, a plan, how often each stream asks. Out: a recording from the first request to the last token. What a
steady load never shows weighs here: how fast a burst of prompts gets in.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.cell import Recording
from loadtest.crew import Helper, pool
from loadtest.judge import Judge
from loadtest.plan import Pair, Plan
from loadtest.sender import Sender
from loadtest.streams import Job, Streams, deal, find_cause


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs one cell. `helpers`: other processes of this client's, which take a part of the streams each."""

    sender: Sender
    judge: Judge
    plan: Plan
    pair: Pair
    requests: int
    helpers: Sequence[Helper] = ()

    async def run(self) -> Recording:
        """Raises CalibrationError at the first answer that is not the work asked for."""
        own_job, *jobs = self._share_out()
        own = Streams(self.sender, self.judge, own_job)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(own.run())
                theirs = [
                    group.create_task(helper.work(self.sender, job))
                    for helper, job in zip(self.helpers, jobs, strict=True)
                ]
        except ExceptionGroup as group_error:
            raise find_cause(group_error) from group_error
        answers, ticks = pool(own, [task.result() for task in theirs], self.judge)
        over_at = max(answer.finished_at or 0.0 for answer in answers)
        return Recording("", self.pair, answers[0].started_at, over_at, answers, ticks)

    def _share_out(self) -> list[Job]:
        tokens = self.plan.tokens
        parts = deal([tokens] * self.pair.level, 1 + len(self.helpers))
        return [Job("", self.pair.number, tokens, part, requests=self.requests) for part in parts]
