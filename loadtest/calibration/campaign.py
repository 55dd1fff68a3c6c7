"""The course of a calibration: probe, measure pair after pair, conclude.

In: a site, the system under test, a plan. Out: cells on disk as they finish, and a Result.
"""

import asyncio
import itertools
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.metadata import version

from loadtest.admin import confirm_engines, read_sizes
from loadtest.calibration.cell_meter import CellMeter, Site
from loadtest.calibration.dcgm import GpuWatch
from loadtest.calibration.node_meter import NodeMeter
from loadtest.calibration.progress import Progress
from loadtest.calibration.resume import History
from loadtest.calibration.schedule import next_pair
from loadtest.client.answer_gate import AnswerGate
from loadtest.client.probe import probe
from loadtest.client.prompts import PromptId, Work
from loadtest.client.sender import Sender
from loadtest.decide.soundness import Check
from loadtest.results.cell import Cell, Pair
from loadtest.results.checks import find_failure, find_flaw, review
from loadtest.results.curves import THROUGHPUT, make_trials
from loadtest.results.folder import RunFolder
from loadtest.results.node import (
    NodeCells,
    NodeFinding,
    OpenCell,
    check_fit,
    check_open_loop,
    find_node_cells,
    make_node,
    note_interference,
)
from loadtest.results.plan import Plan
from loadtest.results.result import Result, find_change, find_crossings, find_threshold, is_resolved
from loadtest.results.system import SystemUnderTest

PROBES = 2  # per backend: the first may find it cold, the second shows how long a request takes


@dataclass(slots=True)
class Campaign:
    """One run. `cells`: the cells of complete pairs, also when the run is broken off. `prompt_seed`: new in every
    process, because an engine may have cached the prompts of a cell that was broken off. `shared_level`: how many were
    in flight on each engine while both worked.
    """

    site: Site
    system: SystemUnderTest
    plan: Plan
    folder: RunFolder
    progress: Progress
    begun_at: datetime
    prompt_seed: int
    history: History = field(default_factory=History)
    cells: list[Cell] = field(default_factory=list)
    node_cells: NodeCells = field(default_factory=dict)
    node: NodeFinding | None = None
    shared_level: int = 0
    open_loop: Sequence[OpenCell] = ()
    _half: tuple[Pair, Cell] | None = None
    _gate: AnswerGate = field(default_factory=AnswerGate)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _pair_s: dict[int, float] = field(default_factory=dict)
    _retries: int = 0
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.cells = list(self.history.cells)
        self._half = self.history.half
        self._retries = self.plan.retries - self.history.voids
        self._numbers = itertools.count(self.history.next_number)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    async def run(self) -> Result:
        """Measures all pairs and returns the result. Raises Untrusted at the first answer that is not the requested
        work, and if an engine was replaced meanwhile; Unreachable if the gateway stops answering.
        """
        meter = await self._probe()
        while pair := self._next_pair():
            await self._measure_pair(meter, pair)
        if self.plan.turns:
            await self._measure_node(NodeMeter(meter, self._numbers))
        self.system = await confirm_engines(self.site.target, self.system)
        return self._conclude()

    def break_off(self, status: str, failure: str) -> Result:
        """Returns the result of a run that did not reach an answer: its cells, and no threshold."""
        return replace(
            self._conclude(),
            status=status,
            failure=failure,
            checks=[Check(status, "failed", failure)],
            findings={},
            threshold=None,
        )

    async def _probe(self) -> CellMeter:
        """Checks that both backends answer exactly as asked, and whether the gateway counts every event's tokens."""
        plan, site = self.plan, self.site
        if site.exporter is not None:
            await GpuWatch(site.exporter).read()
        sender = Sender(
            site.target, self.system.model, self.folder.run, self.prompt_seed, plan.prompt_words, wants_counts=True
        )
        times: list[float] = []
        for number, backend in itertools.product(range(PROBES), self.system.backends):
            sender, answer = await probe(sender, self._gate, Work(backend, PromptId(-1, 0, number), plan.tokens))
            times.append(answer.e2e_s or 0.0)
        self.progress.begin(self.system, plan, self.folder.path, plan.sweep_s(max(times[-2:])))
        return CellMeter(site, self.system, plan, sender, self._gate, self.progress)

    async def _measure_node(self, meter: NodeMeter) -> None:
        change = find_change(find_crossings(self.cells, self.system, self.plan))
        self.node_cells = find_node_cells(self.cells, await meter.measure_cells(), self.plan)
        self.shared_level, turns = await meter.measure_turns(self.cells, change.point if change else None)
        self.system = await read_sizes(self.site.target, self.system)
        known = self.cells, self.node_cells, turns, self.system, self.plan
        self.node = await asyncio.to_thread(make_node, *known)  # it takes seconds of a core
        # Arrivals by chance have no bound in flight, which users beside them were promised.
        if self.node is not None and change is not None and self.site.max_foreign is None:
            self.open_loop = await meter.measure_open(self.node.node, change.point)

    def _next_pair(self) -> Pair | None:
        """Returns the half pair of the run before, else the next one; None if that does not fit into the budget."""
        if self._half is not None:
            return self._half[0]
        done = len({cell.pair for cell in self.cells})
        pair = next_pair(self.plan, done, make_trials(self.cells, self.system.low))
        if pair is None or (done >= len(self.plan.schedule()) and not self._can_afford(pair.level)):
            return None
        return pair

    async def _measure_pair(self, meter: CellMeter, pair: Pair) -> None:
        """Measures both cells, and both again if one was not steady: the pair would compare a backend with a pause."""
        began = time.monotonic()
        half, self._half = self._half, None
        flaw = await (self._try_pair(meter, *half) if half else self._try_pair(meter, self._number(pair)))
        while flaw:
            self.progress.note(f"measuring again: {flaw}")
            flaw = await self._try_pair(meter, self._number(pair))
        self._pair_s[pair.level] = time.monotonic() - began

    def _number(self, pair: Pair) -> Pair:
        return replace(pair, number=next(self._numbers))

    async def _try_pair(self, meter: CellMeter, pair: Pair, *cells: Cell) -> str | None:
        """Measures the cells that `cells` lacks. Returns why the pair has to be measured again; None if it counts."""
        for turn in range(len(cells), 2):
            cell = await meter.measure(pair, turn)
            flaw = find_flaw(cell, self.plan.limits) if self._retries > 0 else None
            self.folder.append(replace(cell, void=flaw))
            if flaw:
                self._retries -= 1
                return flaw
            cells = (*cells, cell)
            self.progress.measured([*self.cells, *cells])
        self.cells += cells
        return None

    def _can_afford(self, level: int) -> bool:
        if self.plan.budget_s is None or not self._pair_s:
            return True
        similar = min((known for known in self._pair_s if known >= level), default=max(self._pair_s))
        return self.elapsed_s + self._pair_s[similar] <= self.plan.budget_s

    def _conclude(self) -> Result:
        plan = self.plan
        findings = find_crossings(self.cells, self.system, plan)
        checks = review(self.cells, self._gate.answers, self.system.low, plan.limits, plan.hardware)
        if self.node is not None:
            checks.append(note_interference(self.node, self.system, self.shared_level))
            checks.append(check_fit(self.node, plan.limits))
            checks.append(check_open_loop(self.open_loop, plan.limits))
        failure = find_failure(checks)
        finding = findings[THROUGHPUT.name]
        threshold = None if failure else find_threshold(finding, plan)
        return Result(
            run=self.folder.run,
            status="untrusted" if failure else "complete" if is_resolved(finding, threshold) else "unresolved",
            failure=failure,
            started_at=self.begun_at.isoformat(timespec="seconds"),
            duration_s=self.elapsed_s,
            client={"crossover": version("crossover"), "python": platform.python_version()},
            system=self.system,
            plan=plan,
            cells=self.cells,
            checks=checks,
            findings=findings,
            threshold=threshold,
            node=self.node.node if self.node else None,
            node_cells=self.node_cells,
            open_loop=self.open_loop,
        )
