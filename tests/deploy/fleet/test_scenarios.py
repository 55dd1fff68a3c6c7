"""The fleets of docs/scaling.md: what the workload is, and the differences that the tables are read for."""

from itertools import islice
from statistics import fmean

import pytest
from click.testing import CliRunner

from deploy.fleet.__main__ import fleet
from deploy.fleet.scenarios import MEAN_TOKENS, MOST, Scenario, capacity, make_arrivals, own_crossing, own_threshold
from engines.reference.curve import load_curve


def test_arrivals_have_the_rate_and_the_length_that_they_are_said_to_have() -> None:
    seen = list(islice(make_arrivals(50.0, seed=3), 200_000))
    assert len(seen) / seen[-1][0] == pytest.approx(50.0, rel=0.02)
    assert fmean(steps for _, steps in seen) + 1 == pytest.approx(MEAN_TOKENS, rel=0.02)


def test_a_nodes_capacity_is_that_of_the_measured_engine() -> None:
    measured = load_curve("vllm").throughput(MOST, round(MEAN_TOKENS)) / MEAN_TOKENS
    assert capacity() == pytest.approx(measured)
    assert own_threshold().down < own_crossing() < own_threshold().up


def test_a_shared_queue_and_the_fewest_in_flight_leave_less_on_the_fullest_node_than_chance_does() -> None:
    kinds = ("shared queue", "least in flight", "power of two", "random")
    figures = [Scenario(kind, 8, 0.9, requests=4_000).run() for kind in kinds]
    imbalances = [one.imbalance for one in figures]
    assert imbalances == sorted(imbalances)
    assert figures[-1].ttft_p99_s > figures[0].ttft_p99_s
    assert all(one.in_flight == pytest.approx(figures[0].in_flight, rel=0.05) for one in figures)


def test_old_readings_herd() -> None:
    fresh, old = (Scenario("polled", 8, 0.7, every_s=every_s, requests=4_000).run() for every_s in (0.01, 1.0))
    assert old.imbalance > 3 * fresh.imbalance
    assert old.goodput < fresh.goodput


def test_a_death_costs_a_small_fleet_more_than_a_large_one() -> None:
    small, large = (Scenario("least in flight", n, 0.8, dies_for_s=2.0, requests=0, seconds=8.0).run() for n in (2, 8))
    assert small.lost > 0
    assert large.lost > 0
    assert small.goodput < large.goodput


def test_the_command_prints_a_table_of_the_fleets_asked_for() -> None:
    shown = CliRunner().invoke(fleet, ["deaths", "--nodes", "2", "--processes", "1"])
    assert shown.exit_code == 0
    rows = [line for line in shown.output.splitlines() if line.startswith("| 2 |")]
    assert [row.split(" | ")[1] for row in rows] == ["70%", "90%"]
