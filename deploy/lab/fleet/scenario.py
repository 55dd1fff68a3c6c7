"""A simulated fleet by its numbers: measured curves, a workload at a share of the nodes' capacity, a balancer by name.

In: a Scenario. Out: its figures. The same seed gives the same run.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import repeat

import numpy as np

from deploy.lab.fleet.balancers import LeastInFlight, PowerOfTwo, Random, RoundRobin
from deploy.lab.fleet.simulation import Death, Record, Simulation, Site
from deploy.lab.fleet.threshold import Threshold, ThresholdRouter
from engines.reference.curve import Curve, load_curve, true_crossing
from engines.simulation import Arrival, EngineSpeed, Job, Node

LOW, HIGH = "trtllm", "vllm"  # the engines, by their curves
MAX_RUNNING = 128  # requests that an engine runs at once: as far as the curves were measured
PROMPT_TOKENS = 12  # about, of the sentence that the measurements send; find_speed gives its prefill the measured time
SHORT, LONG, LONG_SHARE = 128, 2688, 0.05  # tokens of an answer; 256 on average, as in the measurements
MEAN_TOKENS = SHORT + LONG_SHARE * (LONG - SHORT)
WARM_UP_S = 15.0  # after so long under load the first of the long answers have ended
MARGIN = 0.15  # of the thresholds around the crossing (docs/calibration.md)
TTFT_LIMIT_S, TPOT_LIMIT_S = 0.5, 0.006  # with MAX_RUNNING all the time, the high-load engine has a TPOT of 5.5 ms

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
        routers = [ThresholdRouter(self.threshold or own_threshold()) for _ in range(self.nodes)]
        nodes = [Node(both_speeds(), 0.0, router) for router in routers]
        balancers = [BALANCERS[self.balancer](self.nodes, chance) for _ in range(self.instances)]
        death = None if self.dies_for_s is None else Death(0, dies_at_s, dies_at_s + self.dies_for_s)
        return Site(nodes, routers, balancers, death)


def summarize(record: Record, *, node_minutes: float) -> dict[str, float]:
    """Returns the figures by name, times in seconds. A lost request counts as one that did not keep the limits.

    `imbalance`: standard deviation of the nodes' requests in flight over their mean. `switches`: changes of side,
    per node and minute. `burst`: requests given to the returned node in its first second.
    """
    ttft, tpot = np.array([find_times(job) for job in record.ended]).T
    kept = int(((ttft <= TTFT_LIMIT_S) & (tpot <= TPOT_LIMIT_S)).sum())
    samples = np.array(record.samples)
    return {
        "kept_limits": kept / (len(record.ended) + record.lost),
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


def find_times(job: Job) -> tuple[float, float]:
    """Returns the TTFT and the TPOT of an ended job."""
    assert job.first_s is not None
    assert job.end_s is not None
    return job.first_s - job.arrival.at, (job.end_s - job.first_s) / (job.arrival.tokens - 1)


@cache
def both_speeds() -> dict[str, EngineSpeed]:
    """Returns the speeds of the low-load engine and of the high-load one."""
    return {name: find_speed(load_curve(name)) for name in (LOW, HIGH)}


def find_speed(curve: Curve) -> EngineSpeed:
    """Returns the speed at which MAX_RUNNING requests that begin together see the measured TTFT and ITL.

    The measurements' clients all began together, and asked for answers of one length: so they always began together,
    and their TTFT is that of a step with the prefill of all prompts.
    """
    prefill_s = curve.ttft_s(MAX_RUNNING) - curve.itl_s(MAX_RUNNING)
    return EngineSpeed(cache(curve.itl_s), MAX_RUNNING * PROMPT_TOKENS / prefill_s, MAX_RUNNING, prompt_tokens=0)


@cache
def own_crossing() -> float:
    return true_crossing(load_curve(LOW), load_curve(HIGH), round(MEAN_TOKENS))


def own_threshold() -> Threshold:
    crossing = own_crossing()
    return Threshold(up=round(crossing * (1 + MARGIN)), down=round(crossing * (1 - MARGIN)), dwell_s=1.0)


def capacity(load: int = MAX_RUNNING) -> float:
    """Returns the requests per second of the high-load engine with `load` in flight all the time."""
    return load_curve(HIGH).throughput(load, round(MEAN_TOKENS)) / MEAN_TOKENS


def make_arrivals(rate: float, seed: int = 1) -> Iterator[Arrival]:
    """Yields Poisson arrivals of `rate` per second, without end."""
    drawn = np.random.default_rng(seed)
    at = 0.0
    while True:
        gaps = drawn.exponential(1 / rate, 8192)
        tokens = np.where(drawn.random(8192) < LONG_SHARE, LONG, SHORT)
        times = at + np.cumsum(gaps)
        at = float(times[-1])
        yield from (Arrival(*each) for each in zip(times.tolist(), repeat(PROMPT_TOKENS), tokens.tolist()))
