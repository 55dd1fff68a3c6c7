"""The calibration itself: probe, measure pair after pair, conclude. The order of events is here and nothing else.

In: a target, what to compare on it, a plan. Out: cells on disk as they finish, and a Result.
"""

import asyncio
import itertools
import math
import platform
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.metadata import version

from loadtest.campaign import next_pair
from loadtest.cell import Cell, Recording, summarise
from loadtest.checks import Check, find_failure, find_flaw, review
from loadtest.closed_loop import ClosedLoop
from loadtest.crew import Helper
from loadtest.curves import THROUGHPUT, make_trials
from loadtest.decide.threshold import Threshold
from loadtest.folder import RunFolder
from loadtest.foreign import Watch, wait_for_room
from loadtest.gpus import GpuWatch
from loadtest.history import Half, History
from loadtest.judge import Judge
from loadtest.plan import Pair, Plan
from loadtest.probe import probe
from loadtest.regret import Loss, Trip, find_regret, plan_trips
from loadtest.result import Result, find_crossings, find_threshold, is_resolved
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
    """One run. `cells` holds what is finished, also when the run is broken off.

    `max_foreign`: no cell begins while more requests of others than these are in flight. `helpers`: other processes of
    this client's. `exporter`: DCGM's, for what the GPUs do meanwhile.
    `prompt_seed` is new for every process: an engine may still know the prompts of a cell that was broken off.
    """

    target: Target
    subject: Subject
    plan: Plan
    folder: RunFolder
    screen: Screen
    begun_at: datetime
    prompt_seed: int
    history: History = field(default_factory=History)
    max_foreign: int | None = None
    helpers: Sequence[Helper] = ()
    exporter: Target | None = None
    cells: list[Cell] = field(default_factory=list)
    _half: Half | None = None
    _judge: Judge = field(default_factory=Judge)
    _sender: Sender | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _pair_s: dict[int, float] = field(default_factory=dict)
    _retries: int = 0
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.cells = list(self.history.cells)
        self._half = self.history.half
        self._retries = self.plan.retries - self.history.voids
        self._numbers = itertools.count(self.history.next_number)

    async def run(self) -> Result:
        """Raises Untrusted at the first answer that is not the work asked for, and if an engine was replaced meanwhile;
        Unreachable if the gateway goes away.
        """
        sender = self._sender = await self._probe()
        while pair := self._next_pair():
            await self._measure_pair(sender, pair)
        self.subject = await confirm_engines(self.target, self.subject)
        return self._conclude()

    async def check_regret(self, threshold: Threshold, point: float) -> tuple[list[Loss], Check]:
        """With the threshold in force: requests go wherever routing sends them, beside the better backend alone."""
        assert self._sender is not None, "run comes first"
        trips = plan_trips(threshold, point, self.subject.backends, max(self.plan.levels), self.plan.regret_repeats)
        losses = [await self._travel(self._sender, trip) for trip in trips]
        return losses, find_regret(losses, self.plan.limits.regret)

    def break_off(self, status: str, failure: str) -> Result:
        """The result of a run that found no answer: its cells, and no threshold."""
        return replace(
            self._conclude(),
            status=status,
            failure=failure,
            checks=[Check(status, "failed", failure)],
            findings={},
            threshold=None,
        )

    async def _probe(self) -> Sender:
        """Both backends answer exactly as asked, and whether the gateway counts every event for us."""
        plan = self.plan
        run = self.folder.run
        if self.exporter is not None:
            await GpuWatch(self.exporter).look()
        sender = Sender(self.target, self.subject.model, run, self.prompt_seed, plan.prompt_words, counted=True)
        warm: list[float] = []
        for number, backend in itertools.product(range(PROBES), self.subject.backends):
            sender, answer = await probe(sender, self._judge, Asked(backend, Place(-1, 0, number), plan.tokens))
            warm.append(e2e_s(answer) or 0.0)
        self.screen.begin(self.subject, plan, self.folder.path, plan.sweep_s(max(warm[-2:])))
        return sender

    def _next_pair(self) -> Pair | None:
        """One that a run before left half done, else the campaign's; None if the budget has no time for it."""
        if self._half is not None:
            return self._half.pair
        done = len({cell.pair for cell in self.cells})
        pair = next_pair(self.plan, done, make_trials(self.cells, self.subject.low))
        if pair is None or (done >= len(self.plan.schedule()) and not self._can_afford(pair.level)):
            return None
        return pair

    async def _measure_pair(self, sender: Sender, pair: Pair) -> None:
        """Both cells, again if one of them was not steady: it would compare a backend with a pause."""
        began = time.monotonic()
        half, self._half = self._half, None
        flaw = await self._try_pair(sender, pair if half else self._number(pair), half)
        while flaw:
            self.screen.note(f"measuring again: {flaw}")
            flaw = await self._try_pair(sender, self._number(pair), None)
        self._pair_s[pair.level] = time.monotonic() - began

    def _number(self, pair: Pair) -> Pair:
        return replace(pair, number=next(self._numbers))

    async def _try_pair(self, sender: Sender, pair: Pair, half: Half | None) -> str | None:
        cells = [half.cell] if half else []
        for turn in range(len(cells), 2):
            cell = await self._measure(sender, pair, turn)
            flaw = find_flaw(cell, self.plan.limits) if self._retries > 0 else None
            self.folder.append(replace(cell, void=flaw))
            if flaw:
                self._retries -= 1
                return flaw
            cells.append(cell)
            self.screen.measured([*self.cells, *cells])
        self.cells += cells
        return None

    async def _measure(self, sender: Sender, pair: Pair, turn: int) -> Cell:
        backends = self.subject.backends if pair.low_first else self.subject.backends[::-1]
        backend = backends[0 if pair.is_null else turn]
        await self._wait_for_turn()
        self.screen.measuring(pair, backend)
        # A backend that is measured against itself gets other prompts the second time: it may remember them.
        first_stream = turn * pair.level if pair.is_null else 0
        watch = Watch(self.target, self.subject, backend)
        measuring = watch.over(self._load(sender, pair, backend, first_stream))
        gpus = GpuWatch(self.exporter) if self.exporter else None
        recording = await (gpus.over(measuring) if gpus else measuring)
        return replace(
            summarise(recording, self.plan.tokens, self.plan.slo),
            foreign=watch.find_share(recording),
            gpus=gpus.summarise(recording) if gpus else (),
        )

    async def _travel(self, sender: Sender, trip: Trip) -> Loss:
        """Other prompts for the two: routing may send them where they have been."""
        pair = self._number(Pair(trip.level, low_first=True))
        rates, served = {}, Counter[str]()
        for turn, backend in enumerate(("", trip.best) if trip.is_routed_first else (trip.best, "")):
            await self._wait_for_turn()
            self.screen.measuring(pair, backend or "routed")
            recording = await self._load(sender, pair, backend, turn * trip.level)
            rates[backend] = summarise(recording, self.plan.tokens).throughput
            if not backend:
                served.update(answer.backend for answer in recording.answers if answer.backend)
        return Loss(trip.level, trip.best, math.log(rates[""] / rates[trip.best]), dict(served))

    async def _load(self, sender: Sender, pair: Pair, backend: str, first_stream: int) -> Recording:
        helpers = self.helpers[: pair.level - 1]  # each needs a stream
        return await ClosedLoop(sender, self._judge, self.plan, pair, backend, first_stream, helpers=helpers).run()

    async def _wait_for_turn(self) -> None:
        if self.max_foreign is not None:
            await wait_for_room(self.target, self.subject, self.max_foreign, self.screen.note)
        await self._wait_until_quiet()

    async def _wait_until_quiet(self) -> None:
        """The cell before was cut off in mid-stream; its requests must have left the engines before the next begins."""
        for _ in range(QUIET_POLLS):
            if not await count_in_flight(self.target, self.subject):
                return
            await asyncio.sleep(QUIET_POLL_S)

    def _can_afford(self, level: int) -> bool:
        if self.plan.budget_s is None or not self._pair_s:
            return True
        like = min((known for known in self._pair_s if known >= level), default=max(self._pair_s))
        return time.monotonic() - self._started + self._pair_s[like] <= self.plan.budget_s

    def _conclude(self) -> Result:
        plan = self.plan
        findings = find_crossings(self.cells, self.subject, plan)
        checks = review(self.cells, self._judge, self.subject.low, plan.limits, plan.hardware)
        failure = find_failure(checks)
        finding = findings[THROUGHPUT.name]
        threshold = None if failure else find_threshold(finding, plan)
        return Result(
            run=self.folder.run,
            status="untrusted" if failure else "complete" if is_resolved(finding, threshold) else "unresolved",
            failure=failure,
            started_at=self.begun_at.isoformat(timespec="seconds"),
            duration_s=time.monotonic() - self._started,
            client={"crossover": version("crossover"), "python": platform.python_version()},
            subject=self.subject,
            plan=plan,
            cells=self.cells,
            checks=checks,
            findings=findings,
            threshold=threshold,
        )
