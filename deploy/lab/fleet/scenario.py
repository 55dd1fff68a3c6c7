"""A simulated fleet by its numbers: measured curves, a workload at a share of the nodes' capacity, a balancer by name.

In: a Scenario. Out: its figures. The same seed gives the same run.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from deploy.lab.fleet.balancers import LeastInFlight, PowerOfTwo, Random, RoundRobin
from deploy.lab.fleet.simulation import Death, Record, Simulation, Site
from deploy.lab.fleet.threshold import Threshold, ThresholdRouter
from engines.physics import EngineModel, Job
from engines.reference.pairs import PAIRS, Lengths, find_throughput
from engines.simulation import Node, NodeSpec

CURVES = PAIRS.with_name("curves.json")
LOW, HIGH = "trtllm", "vllm"  # the engines, by their curves
MAX_RUNNING = 128  # requests that an engine runs at once: as far as the curves were measured
PROMPT_TOKENS = 12  # about, of the sentence that the measurements send; load_engine gives its prefill the measured time
SHORT, LONG, LONG_SHARE = 128, 2688, 0.05  # tokens of an answer; 256 on average, as in the measurements
MEAN_TOKENS = SHORT + LONG_SHARE * (LONG - SHORT)
STEPS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, MAX_RUNNING)  # of the curves between which steps are linear
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
        spec = NodeSpec({name: load_engine(name) for name in (LOW, HIGH)})
        nodes = [Node(spec, router) for router in routers]
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
    return job.first_s - job.at, (job.end_s - job.first_s) / (job.tokens - 1)


def read_curve(name: str, counts: Sequence[int]) -> tuple[list[float], list[float]]:
    """Returns the measured TTFT and ITL, in milliseconds, for so many in flight; linear in log2 of them."""
    levels = json.loads(CURVES.read_text())["curves"][name]["levels"]
    at = np.log2([level["concurrency"] for level in levels])
    ttft_ms = np.interp(np.log2(counts), at, [level["ttft_p50_s"] * 1e3 for level in levels])
    return ttft_ms.tolist(), np.interp(np.log2(counts), at, [level["itl_p50_ms"] for level in levels]).tolist()


@cache
def load_engine(name: str) -> EngineModel:
    """Returns the engine with which MAX_RUNNING requests that begin together see the measured TTFT and ITL.

    The measurements' clients all began together, and asked for answers of one length: so they always began together,
    and their TTFT is that of a step with the prefill of all prompts.
    """
    ttft_ms, itl_ms = read_curve(name, STEPS)
    prompt_ms = (ttft_ms[-1] - itl_ms[-1]) / (MAX_RUNNING * PROMPT_TOKENS) * 1e3
    return EngineModel(tuple(zip(STEPS, itl_ms, strict=True)), prompt_ms=prompt_ms, max_sequences=MAX_RUNNING)


@cache
def own_crossing() -> float:
    """Returns how many were in flight where both measured curves give the same throughput."""
    counts = range(32, MAX_RUNNING + 1)  # where the ratio only rises
    low, high = (
        np.array(ttft_ms) + (round(MEAN_TOKENS) - 1) * np.array(itl_ms)
        for ttft_ms, itl_ms in (read_curve(name, counts) for name in (LOW, HIGH))
    )
    return float(np.interp(0.0, np.log(low / high), counts))


def own_threshold() -> Threshold:
    crossing = own_crossing()
    return Threshold(up=round(crossing * (1 + MARGIN)), down=round(crossing * (1 - MARGIN)), dwell_s=1.0)


def capacity(load: int = MAX_RUNNING) -> float:
    """Returns the requests per second of the high-load engine with `load` in flight all the time."""
    return find_throughput(load_engine(HIGH), load, Lengths(PROMPT_TOKENS, round(MEAN_TOKENS))) / MEAN_TOKENS


def make_arrivals(rate: float, seed: int = 1) -> Iterator[Job]:
    """Yields Poisson arrivals of `rate` per second, without end."""
    drawn = np.random.default_rng(seed)
    at = 0.0
    while True:
        gaps = drawn.exponential(1 / rate, 8192)
        tokens = np.where(drawn.random(8192) < LONG_SHARE, LONG, SHORT)
        times = at + np.cumsum(gaps)
        at = float(times[-1])
        yield from (Job(at, PROMPT_TOKENS, length) for at, length in zip(times.tolist(), tokens.tolist(), strict=True))
