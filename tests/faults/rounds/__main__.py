"""`python -m tests.faults.rounds KIND`: measures again what docs/results/faults-and-floods.md holds.

In: a kind and its options. Out: a table, each bound with MET or MISSED, and the raw numbers in a file. Exit code 1 if a
bound is missed, 2 if something that it needs is not installed.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from deploy.demo import interrupt_on_signals
from deploy.supervisor import LaunchError
from engines.reference.pairs import RECITED_CONTEXT
from tests.faults.rounds import alarms, flood, loss, rude
from tests.faults.rounds.figures import Result

JSON = click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Where the raw numbers are written."
)
ROUNDS = click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often.")
SEED = click.option("--seed", type=int, default=1, show_default=True, help="Of prompts, lengths and arrivals.")


@click.group()
def rounds() -> None:
    """Measures faults, floods and rude clients on this machine."""
    interrupt_on_signals()


def report(measure: Callable[[Path], Coroutine[Any, Any, Result]], file: Path | None) -> None:
    """Runs a measurement in a folder of its own, prints the result and ends."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = asyncio.run(measure(Path(folder)))
    except LaunchError as exc:
        click.echo(f"rounds: {exc}", err=True)
        sys.exit(2)
    click.echo(result.describe())
    if file is not None:
        file.write_text(json.dumps(result.raw))
    sys.exit(0 if all(bound.is_met for bound in result.bounds) else 1)


def time_scale(default: float) -> Callable[[Any], Any]:  # Any: a decorator of click's
    what = "How many times slower than the measured pair the engines are."
    return click.option(
        "--time-scale", type=click.FloatRange(1.0, 1000.0), default=default, show_default=True, help=what
    )


@rounds.command("flood")
@ROUNDS
@SEED
@JSON
@time_scale(3.0)
@click.option("--seconds", type=click.FloatRange(4.0), default=60.0, show_default=True, help="Of each phase.")
@click.option("--max-in-flight", type=click.IntRange(1), default=24, show_default=True, help="Of each engine.")
@click.option(
    "--prompt-tokens",
    type=click.IntRange(32, RECITED_CONTEXT - flood.MOST_TOKENS),
    default=80,
    show_default=True,
    help="Of each prompt.",
)
def measure_flood(file: Path | None, **options: Any) -> None:  # Any: click's
    """Ten times of what both engines can answer, beside requests of high priority and a light client."""
    report(lambda folder: flood.measure(flood.Options(**options), folder), file)


@rounds.command("rude")
@ROUNDS
@JSON
@click.option("--requests", type=click.IntRange(10), default=400, show_default=True, help="Of the healthy client.")
def measure_rude(file: Path | None, **options: Any) -> None:  # Any: click's
    """Slow, silent and aborting clients: a healthy one's first token behind the gateway and behind nginx."""
    report(lambda folder: rude.measure(rude.Options(**options), folder), file)


@rounds.command("alarms")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="How often each, embedded.")
@JSON
@time_scale(8.0)
@click.option("--tokens", type=click.IntRange(16), default=250, show_default=True, help="Of a stream, embedded.")
@click.option("--stack", type=click.Choice(("embedded", "real")), default="embedded", show_default=True)
@click.option("--seconds", type=click.FloatRange(1.0), default=1200.0, show_default=True, help="Of load, real.")
def measure_alarms(file: Path | None, stack: str, **options: Any) -> None:  # Any: click's
    """A long prompt, half of the streams silent, or a compiler beside real engines: nothing is ejected or moves."""
    measure = alarms.measure_real if stack == "real" else alarms.measure
    report(lambda folder: measure(alarms.Options(**options), folder), file)


@rounds.command("loss")
@ROUNDS
@JSON
@time_scale(4.0)
@click.option("--tokens", type=click.IntRange(16), default=200, show_default=True, help="Of an answer.")
@click.option("--stopped-s", type=click.FloatRange(1.0), default=20.0, show_default=True, help="Of SIGSTOP.")
def measure_loss(file: Path | None, **options: Any) -> None:  # Any: click's
    """An engine killed, or stopped, under 100 streams and 100 whole answers."""
    report(lambda folder: loss.measure(loss.Options(**options), folder), file)


if __name__ == "__main__":
    rounds()
