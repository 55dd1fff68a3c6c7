"""`python -m loadtest.bench`: options in, a run folder with results and a table out."""

import fcntl
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

from loadtest.bench import native, plot, report, tokenizer, triton
from loadtest.bench.claims import claims
from loadtest.bench.cpus import Seats
from loadtest.bench.errors import BenchError
from loadtest.bench.gateways import Found, Hall, look_for
from loadtest.bench.http import free_ports
from loadtest.bench.machine import Machine
from loadtest.bench.mock import MODEL, MockEngine
from loadtest.bench.record import Record, append
from loadtest.bench.runner import Runner, describe, plan, shorten
from loadtest.bench.scenarios import GROUPS, SCENARIOS, TRITON, Scenario, quicken
from loadtest.bench.summary import Summary
from loadtest.bench.systems import SYSTEMS
from loadtest.bench.tokenizer import StampTokenizer

ROOT = Path(__file__).resolve().parents[2]
LONG_PROMPT_TOKENS = 100_000
DOCS = ROOT / "docs"
CHOICES = (*SCENARIOS, TRITON.name)


@dataclass(frozen=True, slots=True)
class Options:
    scenarios: tuple[str, ...]
    systems: tuple[str, ...]
    repeats: int
    is_quick: bool
    peers: Mapping[str, Path]
    cache: Path
    out: Path
    write_docs: bool


def _names(known: Collection[str], groups: Mapping[str, Sequence[str]]) -> Any:  # Any: a click callback
    def parse(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...]:
        if not text:
            return tuple(known)
        asked = [name for part in text.split(",") for name in groups.get(part, (part,))]
        if unknown := [name for name in asked if name not in known]:
            raise click.BadParameter(
                f"unknown: {', '.join(unknown)}; there are {', '.join(dict.fromkeys((*known, *groups)))}"
            )
        return tuple(dict.fromkeys(asked))

    return parse


def _peers(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Mapping[str, Path]:
    """Name to command, from a YAML file."""
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_bytes())
        return {str(name): Path(str(command)).expanduser() for name, command in content.items()}
    except (yaml.YAMLError, AttributeError) as exc:
        raise click.BadParameter(f"{path}: expected lines like `smg: /opt/smg/bin/smg`") from exc


@click.command()
@click.option(
    "--scenarios", callback=_names(CHOICES, GROUPS), help=f"Of {', '.join((*CHOICES, *GROUPS))}.  [default: all]"
)
@click.option("--systems", callback=_names(SYSTEMS, {}), help=f"Of {', '.join(SYSTEMS)}.  [default: all installed]")
@click.option("--repeats", type=click.IntRange(1), help="Measurements of each; medians count.  [default: 3, quick 1]")
@click.option("--quick", "is_quick", is_flag=True, help="Short windows and one repeat: a look, not a result.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="CROSSOVER_BENCH_PEERS",
    show_envvar=True,
    callback=_peers,
    help="YAML file that says where commands are (`smg: /opt/smg/bin/smg`), for those not on the PATH.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / ".bench",
    show_default=".bench",
    help="Where what is built lies, and under peers/<name>/ environments of other gateways.",
)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "runs", show_default="runs")
@click.option("--write-docs", is_flag=True, help="Also write docs/performance.md and docs/performance.svg.")
def main(**values: Any) -> None:  # Any: click's; Options gives the types
    """Measure what gateways cost: CPU per request and per streamed token, delay per token, side by side in one run.

    A mock engine and a load client in C share one CPU, each gateway has another. Every token carries when it was sent
    and its place, so delays are those of tokens, and one that is lost or out of order voids its measurement.

    \b
    Examples:
      make bench ARGS="--quick"
      make bench ARGS="--scenarios pace256,ns16 --systems nginx,crossover-relay --repeats 5"

    Exit codes: 0 measured; 1 some measurement does not count; 2 it could not be tried.
    """
    repeats = values.pop("repeats")
    options = Options(repeats=repeats or (1 if values["is_quick"] else 3), **values)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        with alone(options.cache):
            is_good = Bench(options).run()
    except (BenchError, OSError) as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(2)
    sys.exit(0 if is_good else 1)


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Two runs at once would measure each other: the later one waits."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo("another run is going on; waiting for its end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Bench:
    """One run of the command."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._seats = Seats.here()
        self._records: list[Record] = []
        self._missing: list[str] = []
        self._versions: dict[str, str] = {}
        self._folder = options.out / f"bench-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        self._started_at = time.monotonic()

    def run(self) -> bool:
        """True if everything that was measured counts."""
        if self._seats.complaint:
            self._miss(self._seats.complaint)
        self._folder.mkdir(parents=True)
        scenarios = self._scenarios()
        taking_part = {name for scenario in scenarios for name in scenario.systems}
        found = self._find([name for name in self._options.systems if name in taking_part])
        stamps = tokenizer.prepare(self._options.cache)
        if scenarios:
            self._measure(scenarios, found, stamps)
        if TRITON.name in self._options.scenarios:
            self._measure_triton(stamps)
        self._write()
        return all(record.complaint is None for record in self._records)

    def _scenarios(self) -> list[Scenario]:
        chosen = [SCENARIOS[name] for name in self._options.scenarios if name in SCENARIOS]
        if self._options.is_quick:
            chosen = [quicken(scenario) for scenario in chosen]
        return [shorten(scenario, self._options.systems) for scenario in chosen]

    def _find(self, names: Sequence[str]) -> list[Found]:
        found, missing = look_for([SYSTEMS[name] for name in names], places(self._options.peers, self._options.cache))
        for line in missing:
            self._miss(line)
        self._versions |= {each.system.program: each.version for each in found if each.system.program}
        return found

    def _measure(self, scenarios: Sequence[Scenario], found: Sequence[Found], stamps: StampTokenizer) -> None:
        cache = self._options.cache
        intruder = cache / f"long-prompt-{LONG_PROMPT_TOKENS}.json"
        if not intruder.exists():
            tokenizer.write_long_prompt(stamps, MODEL, LONG_PROMPT_TOKENS, intruder)
        [port] = free_ports(1)
        turns = list(plan(scenarios, [each.system.name for each in found], self._options.repeats))
        with MockEngine(native.build("mock", cache), port, self._folder, stamps.ids, self._seats.engine) as mock:
            hall = Hall(mock.url, port, self._folder, stamps.directory, self._seats)
            client = native.build("load", cache)
            Runner(mock, hall, client, intruder, click.echo, self._miss, self._keep).run(turns, found)

    def _measure_triton(self, stamps: StampTokenizer) -> None:
        if complaint := triton.find_complaint():
            self._miss(complaint)
            return
        [found], _ = look_for([triton.GATEWAY], places(self._options.peers, self._options.cache))
        hall = Hall("", 0, self._folder, stamps.directory, self._seats)
        load = quicken(TRITON).load if self._options.is_quick else TRITON.load
        bench = triton.TritonBench(hall, native.build("load", self._options.cache), stamps.ids, load)
        try:
            for record in bench.run(found, self._options.repeats):
                self._keep(record)
        except BenchError as exc:
            self._miss(f"{TRITON.name} is left out: {exc}")

    def _miss(self, line: str) -> None:
        click.echo(line)
        self._missing.append(line)

    def _keep(self, record: Record) -> None:
        self._records.append(record)
        append(self._folder / "results.jsonl", record)
        click.echo(describe(record))

    def _write(self) -> None:
        """The report into the run's folder, and into docs/ where that was asked for."""
        minutes = (time.monotonic() - self._started_at) / 60
        repeats = self._options.repeats
        about = f"Medians of {repeats} interleaved repeat{'s' * (repeats > 1)}; {minutes:.0f} minutes in all."
        summary = Summary.of(self._records)
        run = report.Run(summary, tuple(claims()), Machine.here(), self._versions, about, self._missing)
        drawing = plot.render(summary)
        (self._folder / "report.md").write_text(report.render(run, "report.svg" if drawing else None))
        (self._folder / "report.svg").write_text(drawing)
        if self._options.write_docs:
            write_docs(DOCS, report.render(run, "performance.svg" if drawing else None), drawing)
        click.echo(f"\n{report.claims_table(run, only_measured=True)}\n\n{about} All of it: {self._folder}/report.md")


def write_docs(folder: Path, text: str, drawing: str) -> None:
    """Between the page's own words: they are kept from one run to the next."""
    page = folder / "performance.md"
    (folder / "performance.svg").write_text(drawing)
    page.write_text(report.replace_results(page.read_text(), text))


def places(given: Mapping[str, Path], cache: Path) -> dict[str, Path]:
    """Commands by name: those in environments under the cache, and over them those that were given."""
    own = {path.name: path / "bin" / path.name for path in sorted(cache.glob("peers/*"))}
    return {name: path for name, path in own.items() if path.exists()} | dict(given)
