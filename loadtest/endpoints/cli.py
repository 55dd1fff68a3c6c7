"""`python -m loadtest.endpoints`: options in, a run folder with every cell and a table out."""

import asyncio
import secrets
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop

from loadtest.crew import crew
from loadtest.endpoints.report import write_report
from loadtest.endpoints.summary import compare
from loadtest.endpoints.tour import Endpoint, Visit, naming, plan_tour, travel
from loadtest.errors import CalibrationError
from loadtest.judge import Judge
from loadtest.plan import Plan
from loadtest.probe import probe
from loadtest.report.words import show_rate
from loadtest.sender import Sender
from loadtest.target import Target
from loadtest.work import Asked, Place

GIVEN = click.core.ParameterSource.COMMANDLINE


@dataclass(frozen=True, slots=True)
class Options:
    endpoints: tuple[tuple[str, Target], ...]
    key: str | None
    model: str
    levels: tuple[int, ...]
    rounds: int
    tokens: int
    prompt_words: int
    window_s: float
    window_requests: int
    batch: int | None
    processes: int
    title: str
    out: Path

    @property
    def plan(self) -> Plan:
        return Plan(
            mode="endpoints",
            levels=self.levels,
            tokens=self.tokens,
            prompt_words=self.prompt_words,
            settle_requests=0,
            window_requests=self.window_requests,
            window_s=self.window_s,
        )


def _endpoints(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, Target], ...]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [text for text, (name, equals, url) in zip(texts, pairs, strict=True) if not (name and equals and url)]:
        raise click.BadParameter(f"{', '.join(wrong)}: expected NAME=URL")
    if len({name for name, _, _ in pairs}) < max(len(pairs), 2):
        raise click.BadParameter("two or more, each of a name of its own: NAME=URL")
    try:
        return tuple((name, Target.parse(url)) for name, _, url in pairs)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _levels(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(level) for level in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text}: whole numbers, like 128,256") from None


@click.command()
@click.option(
    "--endpoint", "endpoints", callback=_endpoints, multiple=True, help="NAME=URL; the first is compared with."
)
@click.option("--key", envvar="OPENAI_API_KEY", show_envvar=True, help="Their API key, if they want one.")
@click.option("--model", required=True, help="Which model, by the name that all of them have for it.")
@click.option("--levels", callback=_levels, default="128,256,512", show_default=True, help="Requests in flight.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Every endpoint once in each.")
@click.option("--tokens", type=click.IntRange(2), default=256, show_default=True, help="Length of every answer.")
@click.option("--prompt-words", type=click.IntRange(1), default=48, show_default=True, help="Length of every prompt.")
@click.option("--window", "window_s", type=float, default=8.0, show_default=True, help="Least seconds of each cell.")
@click.option(
    "--window-requests",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Least requests of one stream, one after the other, in each cell: more where a queue swings.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Instead of a window: all streams begin together, each sends so many requests, and rates are of all of it.",
)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Of this client.")
@click.option("--title", default="", help="What is compared, as the report's first line.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
def main(**values: Any) -> None:  # Any: click's; Options gives the types
    """Load several endpoints of one model in turn with the same work and say what each makes of it.

    For what stands before an engine: a gateway against the engine's own endpoint, one way to start an engine against
    another. Two engines behind one gateway are `crossover calibrate`'s affair.

    \b
    Example:
      python -m loadtest.endpoints --model llama --endpoint direct=http://127.0.0.1:8000 --endpoint gateway=http://127.0.0.1:8080

    Exit codes: 0 measured; 2 bad arguments or no endpoint; 3 a request failed, or its answer was not the work
    asked for.
    """
    options = Options(**values)
    _refuse_both(options.batch)
    folder = options.out / f"endpoints-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            visits = runner.run(_measure(options, folder))
    except KeyboardInterrupt:
        sys.exit(130)
    except (CalibrationError, ValueError) as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(getattr(exc, "exit_code", 2))
    rows = compare(visits, [name for name, _ in options.endpoints])
    report = write_report(rows, options.plan, [visit.flaw for visit in visits if visit.flaw], options.batch)
    report = f"{options.title}\n\n{report}" if options.title else report
    (folder / "report.md").write_text(report)
    click.echo(f"\n{report}\n{folder}")


def _refuse_both(batch: int | None) -> None:
    """Raises click.UsageError."""
    context = click.get_current_context()
    windows = [name for name in ("window_s", "window_requests") if context.get_parameter_source(name) == GIVEN]
    if batch is not None and windows:
        raise click.UsageError("--batch has no window: leave out --window and --window-requests")


async def _measure(options: Options, folder: Path) -> list[Visit]:
    """Raises CalibrationError."""
    endpoints = [await _open(name, target, options) for name, target in options.endpoints]
    await asyncio.to_thread(folder.mkdir, parents=True)  # not before: a tour that cannot begin leaves nothing behind
    stops = plan_tour(len(endpoints), options.levels, options.rounds)
    visits = []
    async with crew(options.processes - 1) as helpers:
        async for visit in travel(endpoints, stops, options.plan, helpers, options.batch):
            with (folder / "cells.jsonl").open("ab") as file:
                file.write(orjson.dumps(visit.as_row(), option=orjson.OPT_APPEND_NEWLINE))
            visits.append(visit)
            rate = show_rate(visit.cell.throughput)
            click.echo(f"round {visit.round + 1}  {visit.endpoint:<16} {visit.level:>5} in flight  {rate:>9} tok/s")
    return visits


async def _open(name: str, target: Target, options: Options) -> Endpoint:
    judge = Judge()
    target = replace(target, key=options.key)
    sender = Sender(target, options.model, "", secrets.randbits(32), options.prompt_words, counted=True)
    with naming(name):
        sender, _ = await probe(sender, judge, Asked("", Place(-1, 0, 0), options.tokens))
    return Endpoint(name, sender, judge)
