"""What a simulated run comes down to. In: a record. Out: goodput under limits, tails, imbalance. Pure."""

import statistics
from dataclasses import dataclass

import numpy as np

from deploy.fleet.simulation import Record

TTFT_LIMIT_S = 0.5
TPOT_LIMIT_S = 0.005


@dataclass(frozen=True, slots=True)
class Figures:
    """`goodput`: the share of the requests that kept both limits; those lost did not. Times in seconds.

    `imbalance`: standard deviation of the nodes' in flight over its mean. `peak`: the most that any node had.
    `switches`: of side, per node and minute. `burst`: what a node that came back was given in its first second.
    """

    goodput: float
    lost: int
    burst: int
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    in_flight: float
    imbalance: float
    peak: int
    switches: float


def summarize(record: Record, *, nodes: int, window_s: float) -> Figures:
    ended = [request for request in record.requests if request.ended < float("inf")]
    ttft, tpot = np.array([(request.ttft_s, request.tpot_s) for request in ended]).T
    kept = (ttft <= TTFT_LIMIT_S) & (tpot <= TPOT_LIMIT_S)
    in_flight = statistics.fmean(record.in_flight)
    return Figures(
        goodput=float(kept.sum()) / len(record.requests),
        lost=record.lost,
        burst=record.burst,
        ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p99_s=float(np.percentile(ttft, 99)),
        tpot_p99_s=float(np.percentile(tpot, 99)),
        in_flight=in_flight,
        imbalance=statistics.fmean(record.deviations) / in_flight,
        peak=max(record.largest),
        switches=record.switches / nodes / (window_s / 60),
    )
