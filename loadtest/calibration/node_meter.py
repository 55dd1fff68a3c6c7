"""Measures what curves of single engines do not show: how fast prompts are read, how much two engines interfere, and
what arrivals by chance do to each.

In: a CellMeter, and the cells so far. Out: a NodeModel, and OpenCells that check it.
"""

import asyncio
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from loadtest.calibration.cell_meter import CellMeter, observe
from loadtest.client.arrivals import Arrivals
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.open_loop import Due, OpenLoop
from loadtest.client.probe import probe
from loadtest.client.prompts import PromptId, Work
from loadtest.client.window import WindowRule
from loadtest.results.cell import Cell, Pair, summarise
from loadtest.results.node import OPEN_SHARE, EngineModel, NodeModel, OpenCell, Prefill, choose_rate, make_node

PREFILLS = 5  # prompts of each length; of their times the least counts: whatever else an idle engine does adds to them
LONGER = 8  # times the usual prompt: short enough for any engine's context
FOREVER = WindowRule(0, 1, float("inf"))
OPEN_ANSWERS, OPEN_S = 3, 3.0  # the least of an open loop: answer times, and seconds
TOKENS = 2  # of answers that are asked for their first token alone


@dataclass(frozen=True, slots=True)
class NodeMeter:
    """`numbers`: of pairs, none of which is used twice."""

    meter: CellMeter
    numbers: Iterator[int]

    async def measure_beside(self, cells: Sequence[Cell], crossing: float | None) -> Mapping[str, Cell]:
        """Measures a cell of each engine while the other one works too, at the level nearest to the crossing, where
        plans change. Returns them by backend. Raises MeasurementError.

        `crossing`: in flight; None where there is not exactly one: the middle level.
        """
        meter, levels = self.meter, sorted({cell.level for cell in cells})
        backends, level = meter.system.backends, levels[len(levels) // 2]
        if meter.site.max_foreign is not None:  # beside users both together must not exceed the highest level
            level = max((each for each in levels if 2 * each <= levels[-1]), default=levels[0])
        elif crossing is not None:
            level = min(levels, key=lambda each: abs(math.log(each / crossing)))
        meter.progress.note(f"measuring how both engines slow each other down, at {level} in flight on each")
        return {
            name: await self._measure_beside(name, other, level)
            for name, other in zip(backends, reversed(backends), strict=True)
        }

    async def measure(self, cells: Sequence[Cell], beside: Mapping[str, Cell]) -> NodeModel | None:
        """Measures how fast the engines read prompts, and makes the model. Raises MeasurementError."""
        self.meter.progress.note("measuring how fast both engines read prompts")
        prefills = {name: await self._measure_prefill(name) for name in self.meter.system.backends}
        return make_node(cells, beside, prefills, self.meter.system, self.meter.plan)

    async def measure_open(self, node: NodeModel, crossing: float) -> Sequence[OpenCell]:
        """Measures each engine under arrivals by chance, with a good part of the crossing in flight."""
        engines = zip(self.meter.system.backends, (node.low, node.high), strict=True)
        return [await self._measure_open(name, engine, crossing) for name, engine in engines]

    async def _measure_open(self, backend: str, engine: EngineModel, crossing: float) -> OpenCell:
        meter, tokens = self.meter, self.meter.plan.tokens
        await meter.wait_for_turn()
        rate = choose_rate(engine, tokens, crossing)
        warm_s = OPEN_SHARE * crossing / rate  # an answer's time: until then fewer are in flight
        number = next(self.numbers)
        due = Arrivals(rate, seed=number).within(warm_s + max(OPEN_ANSWERS * warm_s, OPEN_S))
        loop = OpenLoop(meter.sender, meter.gate, backend, number)
        _, answers = await loop.run([Due(at, tokens) for at in due])
        counted = [answer for answer, at in zip(answers, due, strict=True) if at >= warm_s] or answers
        mean_s = statistics.fmean(answer.e2e_s or 0.0 for answer in counted)
        return OpenCell(backend, round(rate, 3), round(rate * mean_s, 2), round(1000 * mean_s / tokens, 4))

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
