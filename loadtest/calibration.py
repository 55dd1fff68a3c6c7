"""The calibration itself: probe, sweep, refine, conclude. The order of events is here and nothing else.

In: a target, what to compare on it, a plan. Out: cells on disk as they finish, and a Result.
"""

import asyncio
import itertools
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version

from loadtest.answer import Answer
from loadtest.cell import Cell, summarise
from loadtest.checks import Check, Judge, find_flaw, review
from loadtest.closed_loop import ClosedLoop
from loadtest.crossing import Verdict
from loadtest.curves import THROUGHPUT, points
from loadtest.folder import RunFolder
from loadtest.plan import Pair, Plan
from loadtest.refine import next_level
from loadtest.result import Result, find_crossovers, find_threshold
from loadtest.screen import Screen
from loadtest.sender import Sender
from loadtest.stats import e2e_s
from loadtest.subject import Subject, confirm_engines, count_in_flight
from loadtest.target import Target
from loadtest.work import Asked, Place

QUIET_POLLS, QUIET_POLL_S = 40, 0.05
PROBES = 2  # per backend: the first may find it cold, the second tells how long a request takes


@dataclass(slots=True)
class Calibration:
    """One run. `cells` holds what is finished, also when the run is broken off."""

    target: Target
    subject: Subject
    plan: Plan
    folder: RunFolder
    screen: Screen
    cells: list[Cell] = field(default_factory=list)
    _judge: Judge = field(default_factory=Judge)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _pair_s: dict[int, float] = field(default_factory=dict)
    _retries: int = 0
    _started: float = field(default_factory=time.monotonic)
    _started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self._retries = self.plan.retries

    async def run(self) -> Result:
        """Raises Untrusted at the first answer that is not the work asked for, and if an engine was replaced meanwhile;
        Unreachable if the gateway goes away.
        """
        sender = await self._probe()
        for pair in self.plan.schedule():
            await self._measure_pair(sender, pair)
        await self._refine(sender)
        self.subject = await confirm_engines(self.target, self.subject)
        return self._conclude()

    def break_off(self, status: str, failure: str) -> Result:
        """The result of a run that found no answer: its cells, and no threshold."""
        return replace(
            self._conclude(),
            status=status,
            failure=failure,
            checks=[Check(status, "failed", failure)],
            crossovers={},
            threshold=None,
        )

    async def _probe(self) -> Sender:
        """Both backends answer exactly as asked, and whether the gateway counts every event for us."""
        plan = self.plan
        sender = Sender(self.target, self.subject.model, self.folder.run, plan.seed, plan.prompt_words, counted=True)
        warm: list[float] = []
        for number, backend in itertools.product(range(PROBES), self.subject.backends):
            sender, answer = await self._send_probe(sender, Asked(backend, Place(-1, 0, number), plan.tokens))
            warm.append(e2e_s(answer) or 0.0)
        self.screen.begin(self.subject, plan, self.folder.path, plan.sweep_s(max(warm[-2:])))
        return sender

    async def _send_probe(self, sender: Sender, asked: Asked) -> tuple[Sender, Answer]:
        answer = Answer()
        connection = await sender.connect()
        try:
            await sender.send(connection, asked, answer)
        finally:
            connection.abort()
        # continuous_usage_stats is vLLM's extension; a gateway may refuse it or know nothing of it.
        if sender.counted and answer.status == 400:
            return await self._send_probe(replace(sender, counted=False), asked)
        self._judge.accept(answer, asked)
        return replace(sender, counted=sender.counted and answer.is_counted), answer

    async def _refine(self, sender: Sender) -> None:
        for turn in range(self.plan.refine_pairs):
            level = next_level(points(self.cells, self.subject.low), self.plan.band)
            if level is None or not self._can_afford(level):
                return
            await self._measure_pair(sender, Pair(level, low_first=turn % 2 == 0))

    async def _measure_pair(self, sender: Sender, pair: Pair) -> None:
        """Both cells, again if one of them was not steady: it would compare a backend with a pause."""
        began = time.monotonic()
        while flaw := await self._try_pair(sender, replace(pair, number=next(self._numbers))):
            self.screen.note(f"measuring again: {flaw}")
        self._pair_s[pair.level] = time.monotonic() - began

    async def _try_pair(self, sender: Sender, pair: Pair) -> str | None:
        cells: list[Cell] = []
        for backend in self.subject.backends if pair.low_first else self.subject.backends[::-1]:
            cell = await self._measure(sender, pair, backend)
            flaw = find_flaw(cell) if self._retries else None
            self.folder.append(replace(cell, void=flaw))
            if flaw:
                self._retries -= 1
                return flaw
            cells.append(cell)
            self.screen.measured([*self.cells, *cells])
        self.cells += cells
        return None

    async def _measure(self, sender: Sender, pair: Pair, backend: str) -> Cell:
        await self._wait_until_quiet()
        self.screen.measuring(pair, backend)
        recording = await ClosedLoop(sender, self._judge, self.plan, pair, backend).run()
        return summarise(recording, self.plan.tokens)

    async def _wait_until_quiet(self) -> None:
        """The cell before was cut off in mid-stream; its requests must have left the engines before the next begins."""
        for _ in range(QUIET_POLLS):
            if not await count_in_flight(self.target, self.subject):
                return
            await asyncio.sleep(QUIET_POLL_S)

    def _can_afford(self, level: int) -> bool:
        if self.plan.budget_s is None:
            return True
        like = min((known for known in self._pair_s if known >= level), default=max(self._pair_s))
        return time.monotonic() - self._started + self._pair_s[like] <= self.plan.budget_s

    def _conclude(self) -> Result:
        crossovers = find_crossovers(self.cells, self.subject, self.plan)
        crossover = crossovers[THROUGHPUT.name]
        is_unresolved = crossover.verdict in {Verdict.SEVERAL, Verdict.REVERSED}
        return Result(
            run=self.folder.run,
            status="unresolved" if is_unresolved else "complete",
            started_at=self._started_at.isoformat(timespec="seconds"),
            duration_s=time.monotonic() - self._started,
            client={"crossover": version("crossover"), "python": platform.python_version()},
            subject=self.subject,
            plan=self.plan,
            cells=self.cells,
            checks=review(self.cells, self._judge, self.subject.low),
            crossovers=crossovers,
            threshold=find_threshold(crossover, self.plan),
        )
