"""`python -m loadtest.agreement`: options in, a run folder with every tester's own files and a table out."""

import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from loadtest.agreement.engine import MODEL, PacedEngine
from loadtest.agreement.reading import expected
from loadtest.agreement.report import write_report
from loadtest.agreement.session import Endpoint, Session
from loadtest.agreement.testers import TESTERS, LoadTester, find, hint
from loadtest.agreement.workload import Pace, Workload
from loadtest.bench import native
from loadtest.bench.errors import BenchError
from loadtest.bench.http import fetch, free_ports
from loadtest.bench.machine import Machine

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Options:
    testers: tuple[str, ...]
    places: Mapping[str, Path]
    url: str | None
    tokenizer: Path
    ttft_ms: float
    interval_ms: float
    concurrency: int
    requests: int
    tokens: int
    prompt_words: int
    target: float
    max_rounds: int
    cache: Path
    out: Path


def _names(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in TESTERS]:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(TESTERS)}")
    if "crossover" not in names:
        raise click.BadParameter("crossover has to be one of them: the others are compared with it")
    return names


def _places(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Mapping[str, Path]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [name for name, _, path in pairs if name not in TESTERS or not path]:
        raise click.BadParameter(f"{', '.join(wrong)}: expected NAME=PATH, with a name of {', '.join(TESTERS)}")
    # Made absolute as it stands: resolving would lead from an environment's Python to the one it was made from.
    return {name: Path(path).expanduser().absolute() for name, _, path in pairs}


@click.command()
@click.option(
    "--testers", callback=_names, default=",".join(TESTERS), show_default=True, help="Who takes part, if installed."
)
@click.option(
    "--at",
    "places",
    callback=_places,
    multiple=True,
    help="Where a command is, like aiperf=/opt/aiperf/bin/aiperf; for vllm also the Python of its environment.",
)
@click.option("--url", help="Load this endpoint, instead of the paced engine.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True, resolve_path=True),
    default=ROOT / "engines" / "reference" / "weights",
    show_default="the reference engine's",
    help="A folder with the model's tokenizer: the others will not start without one.",
)
@click.option("--ttft-ms", type=click.FloatRange(0), default=500.0, show_default=True, help="The paced engine's.")
@click.option("--interval-ms", type=click.FloatRange(0), default=25.0, show_default=True, help="From token to token.")
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Requests in flight.")
@click.option("--requests", type=int, default=96, show_default=True, help="Of each run: a multiple of concurrency.")
@click.option("--tokens", type=int, default=64, show_default=True, help="Length of every answer.")
@click.option("--prompt-words", type=click.IntRange(1), default=48, show_default=True, help="Length of every prompt.")
@click.option(
    "--target",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.05,
    show_default=True,
    help="Measure until each mean's 90 % interval is within this share; testers closer than this agree.",
)
@click.option("--max-rounds", type=click.IntRange(2), default=10, show_default=True, help="And no longer than this.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / ".bench",
    show_default=".bench",
    help="Where the engine is built.",
)
@click.option("--out", type=click.Path(path_type=Path, resolve_path=True), default=ROOT / "runs", show_default="runs")
def main(**values: Any) -> None:  # Any: click's; Options gives the types
    """Measure one engine with several load testers in turn and say whether they agree.

    The engine is a compiled mock whose every request keeps its own exact pace, so that what testers should read is
    known. All get the same work: a closed loop, streamed chat completions of one length, prompts of one size.

    \b
    Examples:
      python -m loadtest.agreement --at aiperf=/opt/aiperf/bin/aiperf --at vllm=/opt/vllm/bin/python
      python -m loadtest.agreement --testers crossover,aiperf --ttft-ms 50 --concurrency 64 --requests 512
      python -m loadtest.agreement --url http://gpu-node:8000 --tokenizer models/llama

    Exit codes: 0 they agree; 1 they do not, or it takes more rounds; 2 it could not be tried.
    """
    options = Options(**values)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        is_agreed = compare(options)
    except (BenchError, OSError, ValueError) as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(2)
    sys.exit(0 if is_agreed else 1)


def compare(options: Options) -> bool:
    """Raises BenchError, OSError, or ValueError for a workload that is none."""
    workload = Workload(
        concurrency=options.concurrency,
        requests=options.requests,
        tokens=options.tokens,
        prompt_words=options.prompt_words,
    )
    pace = Pace(ttft_s=options.ttft_ms / 1000, interval_s=options.interval_ms / 1000)
    testers = _find_testers(options)
    folder = options.out / f"agreement-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True)
    with _endpoint(options, pace, folder) as endpoint:
        tally = Session(
            endpoint=endpoint,
            testers=testers,
            workload=workload,
            folder=folder,
            target=options.target,
            max_rounds=options.max_rounds,
            say=click.echo,
        ).run()
    report = write_report(tally, workload, None if options.url else expected(pace, workload))
    report += f"\n{Machine.here().describe()}\n"
    (folder / "report.md").write_text(report)
    click.echo(f"\n{report}\n{folder}")
    return tally.is_agreed


def _find_testers(options: Options) -> list[LoadTester]:
    found = {name: find(name, options.places) for name in options.testers}
    for name in (name for name, tester in found.items() if tester is None):
        click.echo(f"left out: {hint(name)}")
    if found["crossover"] is None:
        raise BenchError(hint("crossover"))
    return [tester for tester in found.values() if tester]


@contextmanager
def _endpoint(options: Options, pace: Pace, folder: Path) -> Iterator[Endpoint]:
    """The one that was named, or a paced engine for the time being."""
    if options.url:
        url = options.url.rstrip("/").removesuffix("/v1")
        yield Endpoint(url=url, model=_find_model(url), tokenizer=options.tokenizer)
        return
    [port] = free_ports(1)
    with PacedEngine(native.build("paced", options.cache), port, folder / "engine.log", pace) as engine:
        yield Endpoint(url=engine.url, model=MODEL, tokenizer=options.tokenizer, late_s=engine.late_s)


def _find_model(url: str) -> str:
    try:
        return str(orjson.loads(fetch(f"{url}/v1/models"))["data"][0]["id"])
    except (orjson.JSONDecodeError, LookupError, TypeError) as exc:
        raise BenchError(f"{url}/v1/models names no model") from exc
