"""The simulated fleet against queueing theory's closed forms, its own rules one by one, and its command."""

import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner

from deploy.lab.fleet.__main__ import fleet
from deploy.lab.fleet.balancers import LeastInFlight, PowerOfTwo, Random, RoundRobin
from deploy.lab.fleet.node import Engine, Node, Speeds, Threshold
from deploy.lab.fleet.scenario import BALANCERS, Scenario
from deploy.lab.fleet.simulation import Arrivals, Record, Simulation, Site

PLENTY = 400  # requests that may run at once: never reached


def share_processors(servers: int) -> Speeds:
    """So many servers of one step per second each, shared out; no time to a first token."""
    return Speeds([0.0] * PLENTY, [max(load, servers) / servers for load in range(1, PLENTY + 1)])


def poisson(rate: float, steps: Sequence[float], chance: random.Random) -> Arrivals:
    """Arrivals that ask for one of `steps` each, or for exponentially many with the mean of the only one."""
    at = 0.0
    while True:
        at += chance.expovariate(rate)
        yield at, chance.expovariate(1 / steps[0]) if len(steps) == 1 else chance.choice(steps)


def run_one(speeds: Speeds, arrivals: Iterator[tuple[float, float]], window: tuple[float, float]) -> Record:
    chance = random.Random(1)
    return Simulation(Site([Node([Engine(speeds)])], [Random(1, chance)]), arrivals, window, chance).run()


def erlang_c(servers: int, offered: float) -> float:
    """The probability that all servers are busy. L. Kleinrock, Queueing Systems I (1975), section 3.5."""
    busy = offered**servers / math.factorial(servers) / (1 - offered / servers)
    return busy / (sum(offered**k / math.factorial(k) for k in range(servers)) + busy)


@pytest.mark.parametrize(("servers", "share"), [(1, 0.8), (4, 0.7), (16, 0.8)])
def test_requests_in_flight_are_those_of_an_mmc_queue(servers: int, share: float) -> None:
    """With exponential work the number in the system is the same chain, shared out or one after the other."""
    offered = servers * share
    expected = offered + erlang_c(servers, offered) * share / (1 - share)
    arrivals = poisson(offered, [1.0], random.Random(7))
    record = run_one(share_processors(servers), arrivals, (200.0, 20_000 / servers + 200))
    mean_s = statistics.fmean(request.ended - request.arrived for request in record.requests)
    assert offered * mean_s == pytest.approx(expected, rel=0.06)  # Little's law
    assert statistics.fmean(count for (count,) in record.samples) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_an_answers_time_under_processor_sharing_goes_by_its_own_length_alone(share: float) -> None:
    """M/G/1-PS: x / (1 - rho), whatever the lengths. L. Kleinrock, Queueing Systems II (1976), section 4.4."""
    steps = [0.2, 0.2, 0.2, 3.4]  # one on average
    record = run_one(share_processors(1), poisson(share, steps, random.Random(7)), (200.0, 8_000.0))
    for length in set(steps):
        times = [request.ended - request.arrived for request in record.requests if request.steps == length]
        assert statistics.fmean(times) == pytest.approx(length / (1 - share), rel=0.1)


def test_beyond_its_limit_an_engine_lets_requests_wait_in_order() -> None:
    arrivals = iter([(0.0, 4.0), (0.1, 4.0), (0.2, 4.0), (0.3, 4.0), (100.0, 1.0)])
    record = run_one(Speeds([0.5, 0.5], [1.0, 1.0]), arrivals, (0.0, 50.0))
    assert [request.ttft_s for request in record.requests] == pytest.approx([0.5, 0.5, 4.8, 4.8])
    assert [request.tpot_s for request in record.requests] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("threshold", "engines"), [(Threshold(3, 1, 0.0), [0, 0, 1, 1]), (Threshold(5, 1, 0.0), [0, 0, 0, 0])]
)
def test_a_node_changes_engines_at_its_threshold(threshold: Threshold, engines: list[int]) -> None:
    node = Node([Engine(Speeds([0.0] * 9, [step_s] * 9)) for step_s in (1.0, 2.0)], threshold)
    arrivals = iter([(k / 100, 10.0) for k in range(4)] + [(99.0, 1.0)])
    record = Simulation(Site([node], [Random(1, random.Random(1))]), arrivals, (0.0, 1.0), random.Random(1)).run()
    assert [round(request.tpot_s) - 1 for request in record.requests] == engines


def place(balancer: Random, requests: int) -> list[int]:
    """How many of them each node gets."""
    chosen = [balancer.place() for _ in range(requests)]
    return [chosen.count(node) for node in range(8)]


def test_balancers_keep_to_their_rules() -> None:
    assert place(RoundRobin(8, random.Random(1)), 24) == [3] * 8
    fewest = LeastInFlight(8, random.Random(1))
    assert place(fewest, 24) == [3] * 8
    fewest.ended(5)
    assert fewest.place() == 5
    assert max(place(PowerOfTwo(8, random.Random(1)), 4_000)) <= 503 < max(place(Random(8, random.Random(1)), 4_000))


def test_a_large_fleet_loses_less_by_a_death_and_the_same_seed_is_the_same_run() -> None:
    fleets = [
        Scenario(nodes=nodes, load=0.8, balancer="least in flight", dies_for_s=2.0, requests=0, seconds=8.0)
        for nodes in (2, 8)
    ]
    small, large = (fleet.run() for fleet in fleets)
    assert min(small["lost"], large["lost"]) > 0
    assert small["kept_limits"] < large["kept_limits"]
    assert fleets[0].run() == small


def test_the_command_prints_a_line_for_each_combination() -> None:
    shown = CliRunner().invoke(fleet, ["--nodes", "2", "--requests", "3000", "--load", "0.7", "--load", "0.9"])
    assert shown.exit_code == 0
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {(row["balancer"], row["load"]) for row in rows} == {
        (name, load) for name in BALANCERS for load in (0.7, 0.9)
    }
    busy = {row["balancer"]: row["imbalance"] for row in rows if row["load"] == 0.9}
    assert busy["least in flight"] < busy["power of two"] < busy["random"]
