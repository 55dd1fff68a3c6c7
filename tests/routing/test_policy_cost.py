"""What a route, a plan and a beat of `curve` cost, as ratios within one run; `python -m tests.routing.test_policy_cost`
prints the times.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gateway.core import Policy
from gateway.flow import Flow
from gateway.lengths import Lengths, find_bound
from gateway.routing.demand import BEAT_S, DemandCounts
from gateway.routing.policies import Curve, Threshold
from gateway.shared import Seat
from tests.routing.nodes import LATER
from tests.routing.test_curve import PARTITIONED, REQUEST, SHARED, demand, loads

TURNS, ROUTES, PLANS, BEATS = 31, 5000, 50, 50
BACKENDS = ("triton", "vllm")
CURVE = Curve(*BACKENDS, node=SHARED)
APART = replace(CURVE, node=PARTITIONED)
THRESHOLD = Threshold(*BACKENDS, up=110, down=80)


def time_routes(policy: Policy) -> float:
    """Returns the mean seconds of a route while in-flight changes from one to the next."""
    seen, state = [loads(in_flight, 0) for in_flight in range(64)], policy.start(1, 0.0)
    return time_calls(lambda turn: policy.choose(REQUEST, seen[turn % 64], state, LATER), ROUTES)


def time_plans(policy: Curve) -> float:
    load, state = demand(100, low=95, before=95), policy.start(1, 0.0)
    return time_calls(lambda _: policy.plan(load, state, LATER), PLANS)


class Worker:
    """A worker's counts with so many streams under way."""

    def __init__(self, streams: int) -> None:
        chance = Random(1)
        self._counts = DemandCounts(BACKENDS, Seat.alone())
        self._in_flight = {"triton": streams, "vllm": 0}
        self._now = LATER
        flow, lengths = self._counts.flow.free["triton"], self._counts.flow.lengths
        for _ in range(streams):
            self._begin(flow, lengths, chance.randrange(10, 2000), chance.randrange(1, 500))

    def time_beats(self) -> float:
        """Returns the mean seconds of noting what is under way and of making a demand of it."""
        return time_calls(lambda _: self._beat(), BEATS)

    def _begin(self, flow: Flow, lengths: Lengths, prompt_tokens: int, tokens: int) -> None:
        self._counts.arrive(1, None, prompt_tokens)
        flow.begin(prompt_tokens)
        flow.decode(prompt_tokens, self._now)
        flow.generated += tokens
        flow.held += tokens
        bucket = lengths.begin(0)
        if tokens >= find_bound(bucket):
            lengths.grow(bucket, tokens)

    def _beat(self) -> None:
        self._now += BEAT_S
        self._counts.note()
        assert self._counts.sample(self._in_flight, dict.fromkeys(BACKENDS, 0), self._now) is not None


def time_calls(call: Callable[[int], object], times: int) -> float:
    start = time.perf_counter()
    for turn in range(times):
        call(turn)
    return (time.perf_counter() - start) / times


def take_turns(*measures: Callable[[], float]) -> list[float]:
    """Returns the median of each, measured in turns."""
    return [
        statistics.median(times) for times in zip(*([one() for one in measures] for _ in range(TURNS)), strict=True)
    ]


@pytest.mark.alone
def test_a_route_of_curve_costs_about_what_one_of_threshold_costs() -> None:
    threshold, curve = take_turns(lambda: time_routes(THRESHOLD), lambda: time_routes(CURVE))
    assert curve < 1.5 * threshold


@pytest.mark.alone
def test_a_beat_costs_the_same_for_any_number_of_streams() -> None:
    few, many = take_turns(Worker(20).time_beats, Worker(2000).time_beats)
    assert many < 1.5 * few


if __name__ == "__main__":
    for name, median in zip(
        (
            "a route of threshold",
            "a route of curve",
            "a plan, shared GPUs",
            "a plan, separate GPUs",
            "a beat of 20 streams",
            "a beat of 2,000",
        ),
        take_turns(
            lambda: time_routes(THRESHOLD),
            lambda: time_routes(CURVE),
            lambda: time_plans(CURVE),
            lambda: time_plans(APART),
            Worker(20).time_beats,
            Worker(2000).time_beats,
        ),
        strict=True,
    ):
        print(f"{name:24} {1e6 * median:8.2f} microseconds")  # noqa: T201 - a program
