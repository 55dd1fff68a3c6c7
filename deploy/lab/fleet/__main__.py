"""`python -m deploy.lab.fleet`: simulated fleets of nodes behind balancers. In: what to vary. Out: JSON lines."""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import product
from typing import Any

import click

from deploy.lab.fleet.scenario import BALANCERS, Scenario, capacity, own_crossing, own_threshold
from deploy.lab.fleet.threshold import Threshold


@click.command()
@click.option("--nodes", type=click.IntRange(2, 10_000), multiple=True, default=(4, 64), help="Sizes of fleets.")
@click.option("--load", type=float, multiple=True, default=(0.7, 0.9, 0.97), help="Shares of what all nodes can do.")
@click.option("--balancer", type=click.Choice(list(BALANCERS)), multiple=True, default=tuple(BALANCERS))
@click.option("--instances", type=click.IntRange(1), multiple=True, default=(4,), help="Balancers that share nothing.")
@click.option("--threshold", type=(int, int, float), multiple=True, metavar="UP DOWN DWELL_S", help="Of each node.")
@click.option("--dies-for", "dies_for_s", type=float, help="Seconds for which one node is away.")
@click.option("--requests", type=click.IntRange(0), default=30_000, help="At least so many are measured.")
@click.option("--seconds", type=float, default=2.0, help="The least time that is measured.")
def fleet(**options: Any) -> None:  # Any: click's
    """Simulate fleets of gateway nodes behind balancers: a line for each combination of the options given.

    Every node has two engines, as fast as the measured curves of engines/reference/curves.json, and the gateway's
    threshold policy. The same command prints the same numbers. A line of 1,000 nodes takes minutes.

    \b
    Examples:
      python -m deploy.lab.fleet --nodes 4 --load 0.9
      python -m deploy.lab.fleet --nodes 4 --balancer "least in flight" --dies-for 10 --requests 0 --seconds 40

    Exit codes: 0 done; 2 bad arguments.
    """
    crossing = own_crossing()
    at_crossing = capacity(round(crossing)) / capacity()
    click.echo(f"a node: capacity {capacity():.1f} requests/s; crossing {crossing:.1f}, load {at_crossing!r}", err=True)
    varied = ("nodes", "load", "balancer", "instances", "threshold")
    options["threshold"] = [Threshold(*each) for each in options["threshold"]] or [own_threshold()]
    same = {name: value for name, value in options.items() if name not in varied}
    rows = product(*(options[name] for name in varied))
    scenarios = [Scenario(**dict(zip(varied, row, strict=True)), **same) for row in rows]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for scenario, figures in zip(scenarios, workers.map(Scenario.run, scenarios), strict=True):
            click.echo(json.dumps(asdict(scenario) | figures))


if __name__ == "__main__":
    fleet()
