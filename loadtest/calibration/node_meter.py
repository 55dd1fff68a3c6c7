"""Measures what curves of single engines do not show: how fast prompts are read, and how much two engines interfere.

In: a CellMeter, and the cells so far. Out: a NodeModel.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from loadtest.calibration.cell_meter import CellMeter, observe
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.probe import probe
from loadtest.client.prompts import PromptId, Work
from loadtest.client.window import WindowRule
from loadtest.results.cell import Cell, Pair, summarise
from loadtest.results.node import NodeModel, Prefill, make_node

PREFILLS = 5  # prompts of each length; of their times the least counts: whatever else an idle engine does adds to them
LONGER = 8  # times the usual prompt: short enough for any engine's context
FOREVER = WindowRule(0, 1, float("inf"))
TOKENS = 2  # of answers that are asked for their first token alone


@dataclass(frozen=True, slots=True)
class NodeMeter:
    """`numbers`: of pairs, none of which is used twice."""

    meter: CellMeter
    numbers: Iterator[int]

    async def measure(self, cells: Sequence[Cell], crossing: float | None) -> NodeModel | None:
        """Measures both, at the level nearest to the crossing, where plans change. Raises MeasurementError.

        `crossing`: in flight; None where there is not exactly one: the middle level.
        """
        meter, levels = self.meter, sorted({cell.level for cell in cells})
        meter.progress.note("measuring how both engines slow each other down, and how fast they read prompts")
        backends, level = meter.system.backends, levels[len(levels) // 2]
        if crossing is not None:
            level = min(levels, key=lambda each: abs(math.log(each / crossing)))
        beside = {
            name: await self._measure_beside(name, other, level)
            for name, other in zip(backends, reversed(backends), strict=True)
        }
        prefills = {name: await self._measure_prefill(name) for name in backends}
        return make_node(cells, beside, prefills, meter.system, meter.plan)

    async def _measure_beside(self, backend: str, other: str, level: int) -> Cell:
        """Measures a cell while the other backend has as much to do."""
        meter, pair = self.meter, Pair(level, low_first=True, number=next(self.numbers))
        load = ClosedLoad(other, level, meter.plan.tokens, FOREVER, next(self.numbers))
        neighbour = ClosedLoop(meter.sender, meter.gate, load)
        recording = await observe(meter.load(pair, backend, 0), [_run(neighbour)])
        return summarise(recording, backend, pair, meter.plan.tokens)

    async def _measure_prefill(self, backend: str) -> Prefill:
        meter, words = self.meter, self.meter.sender.prompt_words
        await meter.wait_for_turn()
        lengths: dict[int, list[int]] = {words: [], LONGER * words: []}
        times: dict[int, list[float]] = {words: [], LONGER * words: []}
        number = next(self.numbers)
        for index in range(2 * PREFILLS):
            asked = LONGER * words if index % 2 else words
            work = Work(backend, PromptId(number, 0, index), TOKENS, asked)
            _, answer = await probe(meter.sender, meter.gate, work)
            lengths[asked].append(answer.prompt_tokens or 0)
            times[asked].append(answer.ttft_s or 0.0)
        least = [min(each[asked]) for asked in times for each in (lengths, times)]
        return Prefill(*least)


async def _run(loop: ClosedLoop) -> None:
    with suppress(asyncio.CancelledError):
        await loop.run()
