"""Which fleets are simulated: measured curves, a workload at a share of what the nodes can do, and a balancer by name.

In: a Scenario. Out: its figures. Pure: a scenario has a seed.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from deploy.fleet.balancers import Balancer, LeastInFlight, Polled, PowerOfTwo, Random, RoundRobin
from deploy.fleet.engine import Engine, Node, Speeds, Threshold
from deploy.fleet.figures import Figures, summarize
from deploy.fleet.simulation import Death, Site, simulate
from engines.reference.curve import load_curve, true_crossing

MOST = 128  # requests that an engine runs at once: as far as the curves were measured
SHORT, LONG, LONG_SHARE = 128, 2688, 0.05  # tokens of an answer; 256 on average, as in the measurements
MEAN_TOKENS = SHORT + LONG_SHARE * (LONG - SHORT)
LONGEST_S = 15.0  # after so long under load the first of the long answers have ended
MARGIN = 0.15  # of the thresholds around the crossing (docs/calibration.md)

Make: TypeAlias = Callable[[Sequence[Node], "Scenario", random.Random], Balancer]

BALANCERS: Mapping[str, Make] = {
    "random": lambda nodes, _, chance: Random(len(nodes), chance),
    "round robin": lambda nodes, _, chance: RoundRobin(len(nodes), chance),
    "power of two": lambda nodes, _, chance: PowerOfTwo(len(nodes), chance),
    "least in flight": lambda nodes, _, chance: LeastInFlight(len(nodes), chance),
    "polled": lambda nodes, scenario, chance: Polled(
        lambda: [node.in_flight for node in nodes], len(nodes), scenario.every_s, chance
    ),
    "shared queue": lambda nodes, _, chance: LeastInFlight(len(nodes), chance),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load`: arrivals as a share of what all nodes can answer. `instances`: balancers that share nothing.

    `requests`: at least so many arrive while it is measured, and for at least `seconds`. `dies_for_s`: how long one
    node is away, from a quarter of that time on. `every_s`: between two readings of "polled".
    """

    balancer: str
    nodes: int
    load: float
    instances: int = 4
    every_s: float = 0.25
    threshold: Threshold | None = None
    dies_for_s: float | None = None
    requests: int = 30_000
    seconds: float = 4.0
    seed: int = 1

    def run(self) -> Figures:
        chance = random.Random(self.seed)
        rate = self.load * self.nodes * capacity()
        window = (LONGEST_S, LONGEST_S + max(self.seconds, self.requests / rate))
        record = simulate(self._make_site(window, chance), make_arrivals(rate, self.seed), window, chance)
        return summarize(record, nodes=self.nodes, window_s=window[1] - window[0])

    def _make_site(self, window: tuple[float, float], chance: random.Random) -> Site:
        threshold = self.threshold or own_threshold()
        nodes = [Node([Engine(speeds) for speeds in both_speeds()], threshold) for _ in range(self.nodes)]
        is_shared = self.balancer == "shared queue"
        make = BALANCERS[self.balancer]
        balancers = [make(nodes, self, chance) for _ in range(1 if is_shared else self.instances)]
        return Site(nodes, balancers, MOST if is_shared else None, self._make_death(window))

    def _make_death(self, window: tuple[float, float]) -> Death | None:
        if self.dies_for_s is None:
            return None
        at_s = window[0] + (window[1] - window[0]) / 4
        return Death(0, at_s, at_s + self.dies_for_s)


@cache
def both_speeds() -> tuple[Speeds, Speeds]:
    """Of the low-load engine and of the high-load one."""
    return Speeds.of(load_curve("trtllm"), MOST), Speeds.of(load_curve("vllm"), MOST)


@cache
def own_crossing() -> float:
    return true_crossing(load_curve("trtllm"), load_curve("vllm"), round(MEAN_TOKENS))


def own_threshold() -> Threshold:
    crossing = own_crossing()
    return Threshold(up=round(crossing * (1 + MARGIN)), down=round(crossing * (1 - MARGIN)), dwell_s=1.0)


def capacity() -> float:
    """Requests per second that a node answers with the high-load engine full."""
    return throughput(MOST)


def throughput(load: int) -> float:
    """Requests per second of the high-load engine with so many in flight all the time."""
    speeds = both_speeds()[1]
    return load / (speeds.ttft_s[load - 1] + (MEAN_TOKENS - 1) * speeds.itl_s[load - 1])


def make_arrivals(rate: float, seed: int) -> Iterator[tuple[float, float]]:
    """Poisson arrivals of `rate` per second; without end."""
    drawn = np.random.default_rng(seed)
    at = 0.0
    while True:
        gaps = drawn.exponential(1 / rate, 8192)
        steps = np.where(drawn.random(8192) < LONG_SHARE, LONG - 1, SHORT - 1)
        times = at + np.cumsum(gaps)
        at = float(times[-1])
        yield from zip(times.tolist(), steps.tolist(), strict=True)
