"""Measures one cell: waits until the backends are free, loads one of them, observes it meanwhile, sums it up.

In: a pair and whose turn it is. Out: a Cell.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from loadtest.admin import count_in_flight
from loadtest.calibration.dcgm import GpuWatch
from loadtest.calibration.foreign_load import ForeignLoad, wait_for_others
from loadtest.calibration.progress import Progress
from loadtest.client.answer_gate import AnswerGate
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop, StreamRunner
from loadtest.client.errors import first_cause
from loadtest.client.recording import Recording
from loadtest.client.sender import Sender
from loadtest.client.target import Target
from loadtest.results.cell import Cell, Pair, summarise
from loadtest.results.plan import Plan
from loadtest.results.system import InFlight, SystemUnderTest

IDLE_POLLS, IDLE_POLL_S = 40, 0.05
Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True)
class Site:
    """Where a calibration measures and by what means. `max_foreign`: a cell begins only when at most so many requests
    of others are in flight; None: any number. `exporter`: DCGM's exporter. `workers`: further processes of this client.
    """

    target: Target
    max_foreign: int | None = None
    exporter: Target | None = None
    workers: Sequence[StreamRunner] = ()


@dataclass(frozen=True, slots=True)
class CellMeter:
    site: Site
    system: SystemUnderTest
    plan: Plan
    sender: Sender
    gate: AnswerGate
    progress: Progress

    async def measure(self, pair: Pair, turn: int) -> Cell:
        """Measures the pair's first cell (`turn` 0) or its second (1). Raises MeasurementError."""
        backends = self.system.backends if pair.low_first else self.system.backends[::-1]
        backend = backends[0 if pair.is_null else turn]
        await self.wait_for_turn()
        self.progress.measuring(pair, backend)
        # A backend that is measured against itself gets other prompts the second time: it may have cached the first.
        first_stream = turn * pair.level if pair.is_null else 0
        foreign = ForeignLoad(self._count, backend)
        gpus = GpuWatch(self.site.exporter) if self.site.exporter else None
        observers = [foreign.sample(), *([gpus.sample()] if gpus else [])]
        recording = await observe(self._load(pair, backend, first_stream), observers)
        return replace(
            summarise(recording, backend, pair, self.plan.tokens, self.plan.slo),
            foreign=foreign.find_share(recording),
            gpus=gpus.summarise(recording) if gpus else (),
        )

    async def load(self, pair: Pair, backend: str, turn: int) -> Recording:
        """Loads one backend; each turn has other prompts."""
        await self.wait_for_turn()
        self.progress.measuring(pair, backend)
        return await self._load(pair, backend, turn * pair.level)

    async def _load(self, pair: Pair, backend: str, first_stream: int) -> Recording:
        workers = self.site.workers[: pair.level - 1]  # each needs a stream
        load = ClosedLoad(backend, pair.level, self.plan.tokens, self.plan.window, pair.number, first_stream)
        return await ClosedLoop(self.sender, self.gate, load, workers).run()

    async def wait_for_turn(self) -> None:
        """Waits until nothing of this run is in flight, and few enough requests of others are."""
        if self.site.max_foreign is not None:
            await wait_for_others(self._count, self.site.max_foreign, self.progress.note)
        # The streams of the cell before were cut off; their requests must have left the engines before the next begins.
        for _ in range(IDLE_POLLS):
            if not any(counts.all for counts in (await self._count()).values()):
                return
            await asyncio.sleep(IDLE_POLL_S)

    async def _count(self) -> Mapping[str, InFlight]:
        return await count_in_flight(self.site.target, self.system)


async def observe(measurement: Awaitable[Measured], observers: Iterable[Coroutine[None, None, None]]) -> Measured:
    """Returns what the measurement returns, and cancels the observers then. Raises what any of them raises."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(observer) for observer in observers]
            measured = await measurement
            for task in tasks:
                task.cancel()
    except ExceptionGroup as failure:
        raise first_cause(failure) from failure
    return measured
