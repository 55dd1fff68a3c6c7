"""Routing by a threshold, compared with the better backend alone."""

from collections.abc import Sequence

import pytest

from loadtest.decide.regret import Loss, check_regret, plan_trips
from loadtest.decide.threshold import Threshold


def make_losses(gains: dict[int, Sequence[float]]) -> list[Loss]:
    return [Loss(level, "vllm", gain, {"vllm": 9}) for level, own in gains.items() for gain in own]


def test_the_ends_of_the_band_the_crossing_and_twice_that_are_tried_upwards_and_downwards() -> None:
    trips = list(plan_trips(Threshold(up=12, down=6), 9.2, ("triton", "vllm"), max_level=16, repeats=2))
    assert [trip.level for trip in trips] == [6, 9, 12, 16, 16, 12, 9, 6]
    assert [trip.best for trip in trips[:4]] == ["triton", "triton", "vllm", "vllm"]
    assert [trip.is_routed_first for trip in trips] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    ("gains", "status", "message"),
    [
        ({6: (-0.01, 0.01), 12: (0.0, -0.01)}, "passed", "at least 100% of the better backend alone"),
        ({6: (-0.01, 0.01), 12: (-0.40, -0.41)}, "failed", "REGRET: with routing live, c=12 has 67% of the throughput"),
        ({6: (-0.2, 0.2), 12: (-0.5, 0.1)}, "passed", "at least 82%"),  # too noisy to refuse a policy for
        ({6: (-0.4,)}, "note", "no level was measured twice"),
    ],
)
def test_only_a_sure_loss_is_refused(gains: dict[int, Sequence[float]], status: str, message: str) -> None:
    check = check_regret(make_losses(gains), 0.03)
    assert check.status == status
    assert message in check.message
