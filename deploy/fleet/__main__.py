"""`python -m deploy.fleet`: simulated fleets of nodes behind balancers, as tables. In: questions. Out: Markdown."""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import click
from rich.console import Console
from rich.progress import track

from deploy.fleet.figures import TPOT_LIMIT_S, TTFT_LIMIT_S, Figures
from deploy.fleet.scenarios import MOST, Scenario, capacity, own_crossing
from deploy.fleet.tables import TABLES, Table, write


@click.command()
@click.option(
    "--nodes", type=click.IntRange(2, 10_000), multiple=True, default=(4, 64), show_default=True, help="Fleets."
)
@click.option("--load", "loads", type=float, multiple=True, help="Only rows of this load; by default all.")
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count() or 1, help="By default one for each CPU.")
@click.argument("questions", nargs=-1, type=click.Choice(list(TABLES)))
def fleet(nodes: tuple[int, ...], loads: tuple[float, ...], processes: int, questions: tuple[str, ...]) -> None:
    """Simulate fleets of gateway nodes behind balancers, and print what they keep of their promises.

    Every node has two engines, as fast as the measured curves of engines/reference/curves.json say, and the gateway's
    threshold policy. Same command, same numbers. QUESTIONS are tables, by default all; a row of 1,000 nodes takes
    minutes.

    \b
    Examples:
      python -m deploy.fleet balancers --nodes 4
      python -m deploy.fleet balancers --nodes 1000 --load 0.97

    Exit codes: 0 done; 2 bad arguments.
    """
    click.echo(
        f"A node answers {capacity():.1f} requests/s with {MOST} in flight; its engines cross at {own_crossing():.1f}. "
        f"Limits: TTFT {TTFT_LIMIT_S:g} s, TPOT {TPOT_LIMIT_S * 1000:g} ms."
    )
    with ProcessPoolExecutor(processes) as workers:
        for question in questions or TABLES:
            table = TABLES[question]
            scenarios = [asked for asked in table.ask(nodes) if not loads or asked.load in loads]
            rows = list(_answer(table, scenarios, workers))
            click.echo(f"\n**{table.title}**\n\n{write(table, rows)}")


def _answer(
    table: Table, scenarios: Sequence[Scenario], workers: ProcessPoolExecutor
) -> Iterator[tuple[Scenario, Figures]]:
    figures = workers.map(Scenario.run, scenarios)
    console = Console(stderr=True)
    shown = track(figures, table.title, len(scenarios), console=console, disable=not sys.stderr.isatty())
    yield from zip(scenarios, shown, strict=True)


if __name__ == "__main__":
    fleet()
