"""The questions asked of a simulated fleet, each a table: its scenarios, and the columns that answer it. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from deploy.fleet.engine import Threshold
from deploy.fleet.figures import Figures
from deploy.fleet.scenarios import BALANCERS, Scenario, capacity, own_crossing, own_threshold, throughput

Cells: TypeAlias = tuple[str, ...]
DIES_FOR_S = 10.0
MOST_POLLED = 100  # nodes; of a larger fleet one reading's herd waits for minutes on one node, and so would the table


@dataclass(frozen=True, slots=True)
class Table:
    """`ask`: what it needs to know, of so many nodes; `tell`: one row's cells, in the order of `columns`."""

    title: str
    columns: Cells
    ask: Callable[[Collection[int]], Sequence[Scenario]]
    tell: Callable[[Scenario, Figures], Cells]


def write(table: Table, rows: Sequence[tuple[Scenario, Figures]]) -> str:
    """As Markdown."""
    cells = [table.columns, tuple("---" for _ in table.columns), *(table.tell(*row) for row in rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


TAILS = ("kept limits", "TTFT p50", "TTFT p99", "TPOT p99", "most on a node", "imbalance")


def tell_tails(figures: Figures) -> Cells:
    return (
        f"{figures.goodput:.1%}",
        f"{figures.ttft_p50_s * 1000:,.0f} ms",
        f"{figures.ttft_p99_s * 1000:,.0f} ms",
        f"{figures.tpot_p99_s * 1000:.2f} ms",
        f"{figures.peak:,}",
        f"{figures.imbalance:.1%}",
    )


def ask_balancers(nodes: Collection[int]) -> list[Scenario]:
    return [
        Scenario(balancer, count, load, seconds=2.0)
        for count in nodes
        for load in (0.7, 0.9, 0.97)
        for balancer in BALANCERS
        if balancer != "polled" or count <= MOST_POLLED
    ]


def ask_instances(nodes: Collection[int]) -> list[Scenario]:
    return [
        Scenario(balancer, count, 0.97, instances=instances, seconds=2.0)
        for count in nodes
        for balancer in ("power of two", "least in flight")
        for instances in (1, 4, 16, 64)
    ]


def ask_readings(nodes: Collection[int]) -> list[Scenario]:
    return [
        Scenario("polled", count, 0.7, every_s=every_s, seconds=2.0)
        for count in nodes
        for every_s in (0.01, 0.05, 0.25, 1.0)
    ]


def ask_deaths(nodes: Collection[int]) -> list[Scenario]:
    """Measured from 10 s before the death to 20 s after the return."""
    return [
        Scenario("least in flight", count, load, dies_for_s=DIES_FOR_S, requests=0, seconds=4 * DIES_FOR_S)
        for count in nodes
        for load in (0.7, 0.9)
    ]


def ask_thresholds(nodes: Collection[int]) -> list[Scenario]:
    load = throughput(round(own_crossing())) / capacity()
    bare = Threshold(up=round(own_crossing()), down=round(own_crossing()) - 1, dwell_s=0.0)
    band = own_threshold()
    return [
        Scenario(balancer, count, load, threshold=threshold, requests=0, seconds=30.0)
        for count in nodes
        for balancer in ("random", "least in flight")
        for threshold in (bare, replace(bare, dwell_s=1.0), replace(band, dwell_s=0.0), band)
    ]


def tell_threshold(scenario: Scenario, figures: Figures) -> Cells:
    assert scenario.threshold is not None
    threshold = scenario.threshold
    rule = f"up {threshold.up}, down {threshold.down}, dwell {threshold.dwell_s:g} s"
    return (f"{scenario.nodes:,}", scenario.balancer, rule, f"{figures.switches:.1f}", *tell_tails(figures)[1:4])


TABLES: Mapping[str, Table] = {
    "balancers": Table(
        "How a balancer picks a node (four balancers; the shared queue is one)",
        ("nodes", "load", "balancer", *TAILS),
        ask_balancers,
        lambda scenario, figures: (
            f"{scenario.nodes:,}",
            f"{scenario.load:.0%}",
            scenario.balancer,
            *tell_tails(figures),
        ),
    ),
    "instances": Table(
        "How many balancers share the work without sharing counts (load 97 %)",
        ("nodes", "balancer", "instances", *TAILS),
        ask_instances,
        lambda scenario, figures: (
            f"{scenario.nodes:,}",
            scenario.balancer,
            str(scenario.instances),
            *tell_tails(figures),
        ),
    ),
    "readings": Table(
        "Counts that are read from the nodes now and then (load 70 %, four balancers)",
        ("nodes", "read every", *TAILS),
        ask_readings,
        lambda scenario, figures: (f"{scenario.nodes:,}", f"{scenario.every_s:g} s", *tell_tails(figures)),
    ),
    "deaths": Table(
        "One node dies and is back, empty, 10 s later (least in flight, four balancers; 40 s around it)",
        ("nodes", "load", "streams cut", *TAILS[:5], "given to it in its first second"),
        ask_deaths,
        lambda scenario, figures: (
            f"{scenario.nodes:,}",
            f"{scenario.load:.0%}",
            str(figures.lost),
            *tell_tails(figures)[:5],
            str(figures.burst),
        ),
    ),
    "thresholds": Table(
        "Each node near its crossing (four balancers)",
        ("nodes", "balancer", "threshold", "switches per node and minute", *TAILS[1:4]),
        ask_thresholds,
        tell_threshold,
    ),
}
