"""One benchmark, from the options to its folder: finds the systems, measures, reports.

In: Options. Out: a run's folder, a table on the terminal, and whether everything counts.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from loadtest.lab.bench import tokenizer, triton
from loadtest.lab.bench.cpus import CpuPlan
from loadtest.lab.bench.folder import BenchFolder
from loadtest.lab.bench.gateways import Found, GatewayLauncher, look_for
from loadtest.lab.bench.load_client import SOURCE
from loadtest.lab.bench.runner import Runner, describe
from loadtest.lab.bench.systems import SYSTEMS
from loadtest.lab.bench.tokenizer import StampTokenizer
from loadtest.lab.figures.machine import Machine
from loadtest.lab.figures.measurement import Record
from loadtest.lab.figures.report import About, claims_table
from loadtest.lab.figures.scenarios import SCENARIOS, TRITON, Scenario, plan, quicken, restrict
from loadtest.mock_engine.build import MOCK, build
from loadtest.mock_engine.engine import MODEL, mock_engine
from loadtest.mock_engine.process import CannotMeasure

ROOT = Path(__file__).resolve().parents[3]
LONG_PROMPT_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class Options:
    scenarios: tuple[str, ...]
    systems: tuple[str, ...]
    repeats: int
    is_quick: bool
    peers: Mapping[str, Path]
    cache: Path
    out: Path


class Session:
    """One run."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cpus = CpuPlan.here()
        self._places = find_places(options.peers, options.cache)
        self._missing: list[str] = []
        self._versions: dict[str, str] = {}
        self._is_good = True
        self._left = 0
        self._folder = BenchFolder.create(options.out)
        self._started_at = time.monotonic()

    def run(self) -> bool:
        """Measures; returns whether everything measured counts. Raises CannotMeasure where nothing can be measured."""
        if self._cpus.complaint:
            self._miss(self._cpus.complaint)
        scenarios = self._choose_scenarios()
        taking_part = {name for scenario in scenarios for name in scenario.systems}
        found = self._find([name for name in self._options.systems if name in taking_part])
        stamps = tokenizer.prepare(self._options.cache)
        if scenarios:
            self._measure(scenarios, found, stamps)
        if TRITON.name in self._options.scenarios:
            self._measure_triton(stamps)
        finish(self._folder)
        return self._is_good

    def _choose_scenarios(self) -> list[Scenario]:
        chosen = [SCENARIOS[name] for name in self._options.scenarios if name in SCENARIOS]
        if self._options.is_quick:
            chosen = [quicken(scenario) for scenario in chosen]
        return [restrict(scenario, self._options.systems) for scenario in chosen]

    def _find(self, names: Sequence[str]) -> list[Found]:
        found, missing = look_for([SYSTEMS[name] for name in names], self._places)
        for line in missing:
            self._miss(line)
        self._versions |= {each.system.program: each.version for each in found if each.system.program}
        self._save()
        return found

    def _measure(self, scenarios: Sequence[Scenario], found: Sequence[Found], stamps: StampTokenizer) -> None:
        cache, folder = self._options.cache, self._folder.path
        intruder = cache / f"long-prompt-{LONG_PROMPT_TOKENS}.json"
        if not intruder.exists():
            tokenizer.write_long_prompt(stamps, MODEL, LONG_PROMPT_TOKENS, intruder)
        turns = list(plan(scenarios, [each.system.name for each in found], self._options.repeats))
        self._left = len(turns)
        with mock_engine(build(MOCK, cache), folder, stamps.ids, self._cpus.engine) as mock:
            launcher = GatewayLauncher(mock.url, mock.port, folder, stamps.directory, self._cpus, mock.socket)
            client = build(SOURCE, cache)
            Runner(mock, launcher, client, intruder, click.echo, self._miss, self._keep).run(turns, found)

    def _measure_triton(self, stamps: StampTokenizer) -> None:
        if complaint := triton.find_complaint():
            self._miss(complaint)
            return
        [found], _ = look_for([triton.GATEWAY], self._places)
        launcher = GatewayLauncher("", 0, self._folder.path, stamps.directory, self._cpus)
        load = quicken(TRITON).load if self._options.is_quick else TRITON.load
        bench = triton.TritonBench(launcher, build(SOURCE, self._options.cache), stamps.ids, load)
        self._left = 2 * self._options.repeats
        try:
            for record in bench.run(found, self._options.repeats):
                self._keep(record)
        except CannotMeasure as exc:
            self._miss(f"{TRITON.name} is left out: {exc}")

    def _miss(self, line: str) -> None:
        click.echo(line)
        self._missing.append(line)

    def _keep(self, record: Record) -> None:
        self._is_good = self._is_good and record.complaint is None
        self._left -= 1
        self._folder.append(record)
        self._save()
        click.echo(f"{self._left:>4} to go  {describe(record)}")

    def _save(self) -> None:
        minutes = (time.monotonic() - self._started_at) / 60
        about = About(Machine.here(), self._versions, self._options.repeats, minutes, self._missing)
        self._folder.write_about(about)


def finish(folder: BenchFolder) -> None:
    """Writes the report into the run's folder."""
    run = folder.read()
    folder.write_report(run)
    click.echo(f"\n{claims_table(run, only_measured=True)}\n\n{run.sentences} All: {folder.path}/report.md")


def find_places(given: Mapping[str, Path], cache: Path) -> dict[str, Path]:
    """Returns commands by name: those in environments under the cache, replaced by those that were given."""
    own = {path.name: path / "bin" / path.name for path in sorted(cache.glob("peers/*"))}
    return {name: path for name, path in own.items() if path.exists()} | dict(given)
