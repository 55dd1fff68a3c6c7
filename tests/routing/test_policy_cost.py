"""What a route and a plan of `curve` cost, beside a route of `threshold`; `python -m tests.routing.test_policy_cost`
prints the times.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.core import Policy
from gateway.routing.policies import Curve, Threshold
from tests.routing.test_curve import LATER, PARTITIONED, REQUEST, SHARED, demand, loads

TURNS, ROUTES, PLANS = 31, 5000, 50
CURVE = Curve(low="triton", high="vllm", node=SHARED)
APART = replace(CURVE, node=PARTITIONED)
THRESHOLD = Threshold(low="triton", high="vllm", up=110, down=80)


def time_routes(policy: Policy) -> float:
    """Returns the mean seconds of a route while in-flight changes from one to the next."""
    seen, state = [loads(in_flight, 0) for in_flight in range(64)], policy.start(1, 0.0)
    return time_calls(lambda turn: policy.choose(REQUEST, seen[turn % 64], state, LATER), ROUTES)


def time_plans(policy: Curve) -> float:
    load, state = demand(100, low=95, before=95), policy.start(1, 0.0)
    return time_calls(lambda _: policy.plan(load, state, LATER), PLANS)


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


if __name__ == "__main__":
    for name, median in zip(
        ("a route of threshold", "a route of curve", "a plan, shared GPUs", "a plan, separate GPUs"),
        take_turns(
            lambda: time_routes(THRESHOLD),
            lambda: time_routes(CURVE),
            lambda: time_plans(CURVE),
            lambda: time_plans(APART),
        ),
        strict=True,
    ):
        print(f"{name:24} {1e6 * median:8.2f} microseconds")  # noqa: T201 - a program
