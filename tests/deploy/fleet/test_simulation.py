"""The simulated fleet against what queueing theory knows in closed form, and its own rules one by one."""

import math
import random
import statistics
from collections.abc import Iterator, Sequence

import pytest

from deploy.fleet.balancers import Balancer, LeastInFlight, Polled, PowerOfTwo, Random, RoundRobin
from deploy.fleet.engine import Engine, Node, Speeds, Threshold
from deploy.fleet.simulation import Death, Record, Site, simulate

PLENTY = 400  # requests that may run at once: never reached


def processor_sharing(servers: int) -> Speeds:
    """So many servers of one step per second each, shared out; no time to a first token."""
    return Speeds([0.0] * PLENTY, [max(load, servers) / servers for load in range(1, PLENTY + 1)])


def poisson(rate: float, steps: Sequence[float], chance: random.Random) -> Iterator[tuple[float, float]]:
    """Arrivals that ask for one of `steps` each, or for exponentially many with the mean of the only one."""
    at = 0.0
    while True:
        at += chance.expovariate(rate)
        yield at, chance.expovariate(1 / steps[0]) if len(steps) == 1 else chance.choice(steps)


def run_one(speeds: Speeds, rate: float, steps: Sequence[float], seconds: float = 8_000.0) -> Record:
    chance = random.Random(7)
    site = Site([Node([Engine(speeds)])], [Random(1, chance)])
    return simulate(site, poisson(rate, steps, chance), (200.0, seconds), chance)


def erlang_c(servers: int, offered: float) -> float:
    """The probability that all servers are busy. L. Kleinrock, Queueing Systems I (1975), section 3.5."""
    busy = offered**servers / math.factorial(servers) / (1 - offered / servers)
    return busy / (sum(offered**k / math.factorial(k) for k in range(servers)) + busy)


@pytest.mark.parametrize(("servers", "share"), [(1, 0.5), (1, 0.8), (4, 0.7), (16, 0.8)])
def test_what_is_in_flight_is_that_of_an_mmc_queue(servers: int, share: float) -> None:
    """Shared out or one after the other, with exponential work the number in the system is the same chain."""
    offered = servers * share
    expected = offered + erlang_c(servers, offered) * share / (1 - share)
    record = run_one(processor_sharing(servers), offered, [1.0], seconds=20_000 / servers + 200)
    mean_s = statistics.fmean(request.ended - request.arrived for request in record.requests)
    assert offered * mean_s == pytest.approx(expected, rel=0.06)  # Little's law
    assert statistics.fmean(record.in_flight) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_an_answers_time_under_processor_sharing_goes_by_its_own_length_alone(share: float) -> None:
    """M/G/1-PS: x / (1 - rho), whatever the lengths. L. Kleinrock, Queueing Systems II (1976), section 4.4."""
    steps = [0.2, 0.2, 0.2, 3.4]  # one on average
    record = run_one(processor_sharing(1), share, steps)
    for length in set(steps):
        times = [request.ended - request.arrived for request in record.requests if request.steps == length]
        assert statistics.fmean(times) == pytest.approx(length / (1 - share), rel=0.1)


def test_beyond_its_limit_an_engine_lets_requests_wait_in_order() -> None:
    site = Site([Node([Engine(Speeds([0.5, 0.5], [1.0, 1.0]))])], [Random(1, random.Random(1))])
    arrivals = iter([(0.0, 4.0), (0.1, 4.0), (0.2, 4.0), (0.3, 4.0), (100.0, 1.0)])
    record = simulate(site, arrivals, (0.0, 50.0), random.Random(1))
    assert [request.ttft_s for request in record.requests] == pytest.approx([0.5, 0.5, 4.8, 4.8])
    assert [request.tpot_s for request in record.requests] == pytest.approx([1.0] * 4)


def test_a_step_takes_as_long_as_the_requests_running_at_that_moment_make_it() -> None:
    """Ten steps: five alone at 1 s; five beside another at 2 s."""
    site = Site([Node([Engine(Speeds([0.0, 0.0], [1.0, 2.0]))])], [Random(1, random.Random(1))])
    record = simulate(site, iter([(0.0, 10.0), (5.0, 50.0), (1000.0, 1.0)]), (0.0, 50.0), random.Random(1))
    assert record.requests[0].ended == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("threshold", "sides"),
    [
        (Threshold(up=3, down=1, dwell_s=0.0), [0, 0, 1, 1]),
        (Threshold(up=3, down=1, dwell_s=10.0), [0, 0, 1, 1]),
        (Threshold(up=5, down=1, dwell_s=0.0), [0, 0, 0, 0]),
    ],
)
def test_a_node_changes_engines_at_its_threshold(threshold: Threshold, sides: list[int]) -> None:
    site = make_fleet(1, [Random(1, random.Random(1))], threshold)
    record = simulate(site, iter([(k / 100, 10.0) for k in range(4)] + [(99.0, 1.0)]), (0.0, 1.0), random.Random(1))
    assert [engine_of(request.tpot_s) for request in record.requests] == sides


def engine_of(tpot_s: float) -> int:
    return round(tpot_s) - 1


def make_fleet(nodes: int, balancers: Sequence[Balancer], threshold: Threshold | None = None, **more: object) -> Site:
    """Nodes whose first engine takes a second for a step, and whose second takes two, at any load."""
    both = [Speeds([0.0] * PLENTY, [step_s] * PLENTY) for step_s in (1.0, 2.0)]
    return Site([Node([Engine(speeds) for speeds in both], threshold) for _ in range(nodes)], balancers, **more)  # type: ignore[arg-type]  # a Site's own fields, by name


def counts_after(balancer: Balancer, placed: int) -> list[int]:
    chosen = [balancer.choose(0.0) for _ in range(placed)]
    return [chosen.count(node) for node in range(8)]


def test_least_in_flight_fills_all_nodes_alike_and_a_freed_one_first() -> None:
    balancer = LeastInFlight(8, random.Random(1))
    assert counts_after(balancer, 24) == [3] * 8
    balancer.ended(5)
    assert balancer.choose(0.0) == 5


def test_round_robin_takes_turns() -> None:
    assert counts_after(RoundRobin(8, random.Random(1)), 24) == [3] * 8


def test_of_two_nodes_drawn_the_emptier_one_is_taken() -> None:
    spreads = [max(counts_after(kind(8, random.Random(1)), 4_000)) for kind in (Random, PowerOfTwo)]
    assert spreads[0] > spreads[1]
    assert spreads[1] <= 503


def test_between_two_readings_all_go_to_the_node_that_was_the_emptiest() -> None:
    seen = [4, 2, 3]
    balancer = Polled(lambda: list(seen), 3, every_s=1.0, chance=random.Random(1))
    assert {balancer.choose(1.0) for _ in range(50)} == {1}
    seen[:] = [0, 9, 9]
    assert {balancer.choose(1.5) for _ in range(50)} == {1}
    assert {balancer.choose(2.1) for _ in range(50)} == {0}


@pytest.mark.parametrize("kind", [Random, RoundRobin, PowerOfTwo, LeastInFlight])
def test_a_node_that_is_down_is_never_chosen(kind: type[Random | LeastInFlight]) -> None:
    balancer = kind(8, random.Random(1))
    balancer.mark(3, is_up=False)
    assert counts_after(balancer, 100)[3] == 0
    balancer.mark(3, is_up=True)
    assert counts_after(balancer, 100)[3] > 0


def test_a_death_cuts_what_has_begun_and_the_rest_is_answered_by_others() -> None:
    chance = random.Random(1)
    slow = Speeds([5.0] * PLENTY, [1.0] * PLENTY)
    nodes = [Node([Engine(slow)]) for _ in range(2)]
    death = Death(0, at_s=7.0, back_s=20.0)
    site = Site(nodes, [LeastInFlight(2, chance)], death=death)
    arrivals = iter([(k / 10, 10.0) for k in range(40)] + [(20.5, 10.0), (500.0, 1.0)])
    record = simulate(site, arrivals, (0.0, 60.0), chance)
    begun_before_it = 10  # of the twenty of that node those that came before second 2
    assert record.lost == begun_before_it
    assert sum(request.ended < math.inf for request in record.requests) == 41 - begun_before_it
    assert record.burst == 1


def test_one_queue_for_all_nodes_gives_none_more_than_it_may_have() -> None:
    chance = random.Random(1)
    site = make_fleet(3, [LeastInFlight(3, chance)], most=4)
    record = simulate(site, poisson(20.0, [1.0], chance), (5.0, 20.0), chance)
    assert max(record.largest) == 4
    assert min(request.ttft_s for request in record.requests) > 0  # more comes than they can do: all wait


def test_the_same_seed_is_the_same_run() -> None:
    runs = [run_one(processor_sharing(2), 1.5, [1.0], seconds=500.0) for _ in range(2)]
    assert [request.ended for request in runs[0].requests] == [request.ended for request in runs[1].requests]
