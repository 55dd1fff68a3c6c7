"""Measures what a node model needs besides the cells of the crossing: other shapes, prompts alone, both engines at
once, and arrivals by chance.

In: a CellMeter, and the cells so far. Out: cells; results/node makes the model of them.
"""

import asyncio
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from engines.physics import EngineModel
from loadtest.calibration.cell_meter import CellMeter, observe
from loadtest.client.arrivals import Arrivals
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.errors import Untrusted
from loadtest.client.open_loop import Due, OpenLoop
from loadtest.client.probe import PromptLengths, probe, probe_lengths
from loadtest.client.prompts import PromptId, Work
from loadtest.client.window import WindowRule
from loadtest.decide.closed_load import Load
from loadtest.decide.engine_fit import Measured
from loadtest.decide.node_cells import LONGEST, MOST_IN_FLIGHT, list_loads, list_prompts
from loadtest.decide.open_load import Arrival, serve
from loadtest.results.cell import Cell, Pair, summarise
from loadtest.results.checks import find_flaw
from loadtest.results.node import OPEN_SHARE, NodeCells, NodeModel, OpenCell, choose_rate, make_measured

PROMPTS = 5  # alone, of each length
MOST_PROMPT_S = 1.0  # that the longest may take alone: a cell of many that take longer would take minutes
SHORTEST = 64  # tokens: below it there is nothing to shorten
SHORTER = 3 / 4  # of the length that an engine does not take is tried next
ROOM = 1 / 8  # more words are tried than the longest prompts get: equally many words differ in tokens
FOREVER = WindowRule(0, 1, float("inf"))
OPEN_ANSWERS, OPEN_S = 3, 3.0  # the least of an open loop: answer times, and seconds
TOKENS = 2  # of answers that are asked for their first token alone
TURN_SHARE = 4  # answers and windows of a turn are so many times as short as those of the first shape


@dataclass(frozen=True, slots=True)
class NodeMeter:
    """`numbers`: of pairs, none of which is used twice."""

    meter: CellMeter
    numbers: Iterator[int]

    async def measure_cells(self) -> NodeCells:
        """Measures cells of other shapes, and prompts alone, in turns between the backends. Raises MeasurementError."""
        lengths, longest = await self._find_longest()
        found: dict[str, list[Measured]] = {name: [] for name in self.meter.system.backends}
        most = max(self.meter.plan.levels)
        self._note_limits(longest, most)
        for load in list_loads(self.meter.plan.tokens, longest, most):
            for cell in await self._measure_pair(load, lengths.count_words(load.prompt_tokens)):
                if measured := make_measured(cell, load.answer_tokens):
                    found[cell.backend].append(measured)
        self.meter.progress.note("measuring how fast both engines read prompts alone")
        for tokens in list_prompts(longest):
            for name, measured in (await self._measure_alone(lengths.count_words(tokens))).items():
                found[name].append(measured)
        return found

    async def measure_turns(
        self, cells: Sequence[Cell], crossing: float | None
    ) -> tuple[int, Sequence[Mapping[str, Sequence[Cell]]]]:
        """Measures each engine alone, while the other one works too, and alone again, at the level nearest to the
        crossing, where plans change. Returns the level, and by turn and backend these three cells.

        `crossing`: in flight; None where there is not exactly one: the middle level.
        """
        meter, levels = self.meter, sorted({cell.level for cell in cells})
        level = levels[len(levels) // 2]
        if meter.site.max_foreign is not None:  # beside users both together must not exceed the highest level
            level = max((each for each in levels if 2 * each <= levels[-1]), default=levels[0])
        elif crossing is not None:
            level = min(levels, key=lambda each: abs(math.log(each / crossing)))
        meter.progress.note(f"measuring how both engines slow each other down, at {level} in flight on each")
        return level, [await self._measure_turn(level) for _ in range(meter.plan.turns)]

    async def measure_open(self, node: NodeModel, crossing: float) -> Sequence[OpenCell]:
        """Measures each engine under arrivals by chance, with a good part of the crossing in flight."""
        engines = zip(self.meter.system.backends, (node.low, node.high), strict=True)
        return [await self._measure_open(name, engine, node, crossing) for name, engine in engines]

    # Shapes.

    async def _find_longest(self) -> tuple[PromptLengths, int]:
        """Finds the longest prompt, in tokens, that both engines take, and read in time."""
        meter = self.meter
        await meter.wait_for_turn()
        _, lengths = await probe_lengths(meter.sender, meter.gate, meter.system.backends, TOKENS)
        longest = LONGEST
        while longest > SHORTEST and await self._time_prompt(lengths.count_words(longest)) > MOST_PROMPT_S:
            longest = round(SHORTER * longest)
        return lengths, longest

    async def _time_prompt(self, words: int) -> float:
        """Returns the seconds to the first token on the slower engine; endless if one refuses so long a prompt."""
        meter, number, times = self.meter, next(self.numbers), []
        words = round((1 + ROOM) * words)
        for backend in meter.system.backends:
            try:
                _, answer = await probe(meter.sender, meter.gate, Work(backend, PromptId(number, 0, 0), TOKENS, words))
            except Untrusted as exc:
                meter.progress.note(f"{backend} takes no prompt of {words} words: {exc}")
                return math.inf
            times.append(answer.ttft_s or 0.0)
        return max(times)

    def _note_limits(self, longest: int, most: int) -> None:
        if longest < LONGEST:
            self.meter.progress.note(f"prompts of other shapes are at most {longest} tokens long, usually {LONGEST}")
        if most < MOST_IN_FLIGHT:
            self.meter.progress.note(
                f"other shapes are measured with at most {most} in flight, usually {MOST_IN_FLIGHT}"
            )

    async def _measure_pair(self, load: Load, words: int) -> Sequence[Cell]:
        """Measures both engines' cells of a load, and again, once, if one was not steady."""
        meter = replace(
            self.meter,
            plan=replace(self.meter.plan, tokens=load.answer_tokens, prompt_words=words, window_requests=1),
            sender=replace(self.meter.sender, prompt_words=words),
        )
        meter.progress.note(f"measuring {load.prompt_tokens:,} prompt tokens x {load.answer_tokens}")
        cells: list[Cell] = []
        for _ in range(2):
            number = next(self.numbers)
            pair = Pair(load.in_flight, low_first=number % 2 == 0, number=number)
            cells = [await meter.measure(pair, turn) for turn in range(2)]
            flaws = [flaw for cell in cells if (flaw := find_flaw(cell, meter.plan.limits))]
            if not flaws:
                break
            meter.progress.note(f"not steady: {flaws[0]}")
        return cells

    async def _measure_alone(self, words: int) -> Mapping[str, Measured]:
        meter, number = self.meter, next(self.numbers)
        times: dict[str, list[float]] = {name: [] for name in meter.system.backends}
        lengths: list[int] = []
        for index in range(PROMPTS):
            for backend in meter.system.backends:
                await meter.wait_for_turn()
                work = Work(backend, PromptId(number, 0, index), TOKENS, words)
                _, answer = await probe(meter.sender, meter.gate, work)
                lengths.append(answer.prompt_tokens or 1)
                times[backend].append(answer.ttft_s or 0.0)
        load = Load(round(statistics.fmean(lengths)), TOKENS, 1)
        return {name: Measured(load, round(1000 * statistics.median(own), 4)) for name, own in times.items()}

    # Turns.

    async def _measure_turn(self, level: int) -> Mapping[str, Sequence[Cell]]:
        """Measures low, high, both, high, low: drift then counts for alone as much as for together."""
        low, high = self.meter.system.backends
        order = ((low, None), (high, None), (low, high), (high, low), (high, None), (low, None))
        found: dict[str, list[Cell]] = {low: [], high: []}
        for backend, other in order:
            found[backend].append(await self._measure_beside(backend, other, level))
        return found

    async def _measure_beside(self, backend: str, other: str | None, level: int) -> Cell:
        """Measures a short cell, while the other backend has as much to do, if there is one."""
        plan = self.meter.plan
        tokens = max(plan.tokens // TURN_SHARE, 2)
        meter = replace(
            self.meter,
            plan=replace(plan, tokens=tokens, window_requests=1, window_s=plan.window_s / TURN_SHARE),
        )
        pair = Pair(level, low_first=True, number=next(self.numbers))
        load = ClosedLoad(other or "", level, tokens, FOREVER, next(self.numbers))
        neighbours = [_run(ClosedLoop(meter.sender, meter.gate, load))] if other else []
        return summarise(await observe(meter.load(pair, backend, 0), neighbours), backend, pair, tokens)

    # Arrivals by chance.

    async def _measure_open(self, backend: str, engine: EngineModel, node: NodeModel, crossing: float) -> OpenCell:
        meter, tokens = self.meter, self.meter.plan.tokens
        await meter.wait_for_turn()
        rate = choose_rate(node, engine, crossing)
        warm_s = OPEN_SHARE * crossing / rate  # an answer's time: until then fewer are in flight
        number = next(self.numbers)
        due = Arrivals(rate, seed=number).within(warm_s + max(OPEN_ANSWERS * warm_s, OPEN_S))
        loop = OpenLoop(meter.sender, meter.gate, backend, number)
        _, answers = await loop.run([Due(at, tokens) for at in due])
        expected = serve(engine, [Arrival(at, node.prompt_tokens, tokens) for at in due])
        measured = [answer.e2e_s or 0.0 for answer in answers]
        counted = [place for place, at in enumerate(due) if at >= warm_s] or list(range(len(due)))
        answer_s, expected_s = (statistics.fmean(each[place] for place in counted) for each in (measured, expected))
        return OpenCell(backend, round(rate, 3), round(rate * answer_s, 2), round(answer_s, 4), round(expected_s, 4))


async def _run(loop: ClosedLoop) -> None:
    with suppress(asyncio.CancelledError):
        await loop.run()
