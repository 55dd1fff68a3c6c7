"""Drift as arithmetic: what an engine counts beside what it was sent, and how much of that lasts."""

import pytest

from gateway.evidence.drift import SteadyDrift, find_drift


@pytest.mark.parametrize(
    ("engine", "before", "after", "drift"),
    [
        (5, 5, 5, 0),
        (17, 5, 5, 12),
        (3, 5, 5, -2),
        (6, 5, 8, 0),  # three came while the engine answered: any of them may be counted
        (6, 8, 5, 0),
        (9, 5, 8, 1),
        (4, 8, 5, -1),
        (0, 0, 0, 0),
    ],
)
def test_any_count_between_two_readings_of_the_ledger_agrees(engine: int, before: int, after: int, drift: int) -> None:
    assert find_drift(engine, before, after) == drift


STEADY: dict[str, tuple[float, float, list[int | None], list[int | None]]] = {
    "all alike": (30.0, 10.0, [12, 12, 12, 12], [None, None, None, 12]),
    "above": (30.0, 10.0, [15, 12, 40, 13], [None, None, None, 12]),
    "below": (30.0, 10.0, [-4, -9, -3, -5], [None, None, None, -3]),
    "both signs": (30.0, 10.0, [3, -1, 4, 2], [None, None, None, 0]),
    "one in accord": (30.0, 10.0, [3, 0, 4, 2], [None, None, None, 0]),
    "older than needed": (30.0, 10.0, [1, 9, 9, 9, 9, 20, 20, 20, 20], [None, None, None, 1, 9, 9, 9, 9, 20]),
    "rare, yet covering the time": (30.0, 100.0, [7, 8, 9], [None, 7, 8]),
    "an unknown one breaks the chain": (10.0, 10.0, [5, 5, None, 5, 5], [None, 5, None, None, 5]),
}


@pytest.mark.parametrize(("for_s", "every_s", "drifts", "expected"), STEADY.values(), ids=STEADY)
def test_steady_drift_is_the_reading_nearest_zero_of_those_that_cover_the_time(
    for_s: float, every_s: float, drifts: list[int | None], expected: list[int | None]
) -> None:
    steady = SteadyDrift(for_s)
    assert [steady.feed(drift, every_s * number) for number, drift in enumerate(drifts)] == expected
