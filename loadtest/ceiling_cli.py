"""`crossover bench --null`: this machine's ceiling with this client, as a table or as JSON."""

import asyncio
from dataclasses import asdict

import click
import orjson
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.ceiling import STREAMS, WINDOW_S, Ceiling, Load, measure_ceiling
from loadtest.report.words import show_ms, show_rate

HEADINGS = ("events/s", "CPU", "per CPU s", "lag p99", "late p50", "late p99")
KEPT = {"is_null", "concurrency", "window_s", "as_json"}


def refuse_others(context: click.Context) -> None:
    """Raises UsageError for options that say which endpoint to load, and how."""
    given = click.core.ParameterSource.COMMANDLINE
    others = [option for option in context.params if context.get_parameter_source(option) is given]
    if set(others) - KEPT:
        raise click.UsageError(
            "--null has a backend and a load of its own: it goes with --concurrency, --window, --json"
        )


def print_ceiling(concurrency: int | None, window_s: float | None, *, as_json: bool) -> None:
    """Raises Unreachable."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ceiling = runner.run(measure_ceiling(concurrency or STREAMS, window_s or WINDOW_S))
    if as_json:
        click.echo(orjson.dumps(asdict(ceiling) | {"doubts": ceiling.doubts}, option=orjson.OPT_INDENT_2))
        return
    console = Console()
    console.print(_draw(ceiling))
    for doubt in ceiling.doubts:
        console.print(doubt, highlight=False, markup=False)


def _draw(ceiling: Ceiling) -> Table:
    title = f"One client process, {ceiling.streams} streams, a null backend on this machine"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name, load in (("flat out", ceiling.flat_out), ("spread", ceiling.spread), ("in step", ceiling.in_step)):
        table.add_row(name, *_figures(load))
    return table


def _figures(load: Load) -> tuple[str, ...]:
    late = load.lateness_s
    rates = (show_rate(load.events_per_s), f"{load.client_cpu:.0%}", show_rate(load.events_per_cpu_s))
    delays = (show_ms(load.loop_lag_p99_s), show_ms(late.p50) if late else "", show_ms(late.p99) if late else "")
    return *rates, *delays
