"""A simulated fleet by its numbers: measured curves, a workload at a share of the nodes' capacity, a balancer by name.

In: a Scenario. Out: its figures. The same seed gives the same run.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from deploy.lab.fleet.balancers import LeastInFlight, PowerOfTwo, Random, RoundRobin
from deploy.lab.fleet.node import Engine, Node, Speeds, Threshold
from deploy.lab.fleet.simulation import Death, Record, Simulation, Site
from engines.reference.curve import load_curve, true_crossing

MAX_RUNNING = 128  # requests that an engine runs at once: as far as the curves were measured
SHORT, LONG, LONG_SHARE = 128, 2688, 0.05  # tokens of an answer; 256 on average, as in the measurements
MEAN_TOKENS = SHORT + LONG_SHARE * (LONG - SHORT)
WARM_UP_S = 15.0  # after so long under load the first of the long answers have ended
MARGIN = 0.15  # of the thresholds around the crossing (docs/calibration.md)
TTFT_LIMIT_S, TPOT_LIMIT_S = 0.5, 0.005

BALANCERS: Mapping[str, type[Random]] = {
    "random": Random,
    "round robin": RoundRobin,
    "power of two": PowerOfTwo,
    "least in flight": LeastInFlight,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. `load`: arrivals as a share of what all nodes can answer. `instances`: balancers that share nothing.

    At least `requests` arrive while it is measured, and for at least `seconds`. `dies_for_s`: how long one node is
    away, from a quarter of that time on.
    """

    nodes: int
    load: float
    balancer: str
    instances: int = 4
    threshold: Threshold | None = None
    dies_for_s: float | None = None
    requests: int = 30_000
    seconds: float = 2.0

    def run(self) -> dict[str, float]:
        chance = random.Random(1)
        rate = self.load * self.nodes * capacity()
        window_s = max(self.seconds, self.requests / rate)
        site = self._make_site(WARM_UP_S + window_s / 4, chance)
        window = (WARM_UP_S, WARM_UP_S + window_s)
        record = Simulation(site, make_arrivals(rate), window, chance).run()
        return summarize(record, node_minutes=self.nodes * window_s / 60)

    def _make_site(self, dies_at_s: float, chance: random.Random) -> Site:
        threshold = self.threshold or own_threshold()
        nodes = [Node([Engine(speeds) for speeds in both_speeds()], threshold) for _ in range(self.nodes)]
        balancers = [BALANCERS[self.balancer](self.nodes, chance) for _ in range(self.instances)]
        death = None if self.dies_for_s is None else Death(0, dies_at_s, dies_at_s + self.dies_for_s)
        return Site(nodes, balancers, death)


def summarize(record: Record, *, node_minutes: float) -> dict[str, float]:
    """Returns the figures by name, times in seconds. A lost request counts as one that did not keep the limits.

    `imbalance`: standard deviation of the nodes' requests in flight over their mean. `switches`: changes of side,
    per node and minute. `burst`: requests given to the returned node in its first second.
    """
    ended = [request for request in record.requests if request.ended < float("inf")]
    ttft, tpot = np.array([(request.ttft_s, request.tpot_s) for request in ended]).T
    samples = np.array(record.samples)
    return {
        "kept_limits": float(((ttft <= TTFT_LIMIT_S) & (tpot <= TPOT_LIMIT_S)).sum()) / len(record.requests),
        "ttft_p50_s": float(np.percentile(ttft, 50)),
        "ttft_p99_s": float(np.percentile(ttft, 99)),
        "tpot_p99_s": float(np.percentile(tpot, 99)),
        "peak": int(samples.max()),
        "in_flight": float(samples.mean()),
        "imbalance": float(samples.std(axis=1).mean() / samples.mean()),
        "switches": record.switches / node_minutes,
        "lost": record.lost,
        "burst": record.burst,
    }


@cache
def both_speeds() -> tuple[Speeds, Speeds]:
    """Returns the speeds of the low-load engine and of the high-load one."""
    low, high = (
        Speeds([curve.ttft_s(load) for load in loads], [curve.itl_s(load) for load in loads])
        for curve, loads in ((load_curve(name), range(1, MAX_RUNNING + 1)) for name in ("trtllm", "vllm"))
    )
    return low, high


@cache
def own_crossing() -> float:
    return true_crossing(load_curve("trtllm"), load_curve("vllm"), round(MEAN_TOKENS))


def own_threshold() -> Threshold:
    crossing = own_crossing()
    return Threshold(up=round(crossing * (1 + MARGIN)), down=round(crossing * (1 - MARGIN)), dwell_s=1.0)


def capacity(load: int = MAX_RUNNING) -> float:
    """Returns the requests per second of the high-load engine with `load` in flight all the time."""
    speeds = both_speeds()[1]
    return load / (speeds.ttft_s[load - 1] + (MEAN_TOKENS - 1) * speeds.itl_s[load - 1])


def make_arrivals(rate: float, seed: int = 1) -> Iterator[tuple[float, float]]:
    """Yields Poisson arrivals of `rate` per second, without end."""
    drawn = np.random.default_rng(seed)
    at = 0.0
    while True:
        gaps = drawn.exponential(1 / rate, 8192)
        steps = np.where(drawn.random(8192) < LONG_SHARE, LONG - 1, SHORT - 1)
        times = at + np.cumsum(gaps)
        at = float(times[-1])
        yield from zip(times.tolist(), steps.tolist(), strict=True)
