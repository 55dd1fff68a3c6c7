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
def test_any_count_between_the_two_readings_of_the_ledger_is_in_accord(
    engine: int, before: int, after: int, drift: int
) -> None:
    assert find_drift(engine, before, after) == drift


@pytest.mark.parametrize(
    ("drifts", "steady"),
    [
        ([12, 12, 12, 12], 12),
        ([15, 12, 40, 13], 12),
        ([-4, -9, -3, -5], -3),
        ([3, -1, 4, 2], 0),
        ([3, 0, 4, 2], 0),
    ],
)
def test_steady_drift_is_the_reading_nearest_zero(drifts: list[int], steady: int) -> None:
    steadied = SteadyDrift(for_s=30.0)
    assert [steadied.feed(drift, 10.0 * number) for number, drift in enumerate(drifts)] == [None, None, None, steady]


def test_readings_older_than_needed_no_longer_count() -> None:
    steady = SteadyDrift(for_s=30.0)
    seen = [steady.feed(drift, 10.0 * number) for number, drift in enumerate([1, 9, 9, 9, 9, 20, 20, 20, 20])]
    assert seen == [None, None, None, 1, 9, 9, 9, 9, 20]


def test_rare_readings_still_cover_the_time() -> None:
    steady = SteadyDrift(for_s=30.0)
    assert [steady.feed(drift, 100.0 * number) for number, drift in enumerate([7, 8, 9])] == [None, 7, 8]


def test_an_unknown_reading_breaks_the_chain() -> None:
    steady = SteadyDrift(for_s=10.0)
    assert [steady.feed(drift, 10.0 * number) for number, drift in enumerate([5, 5, None, 5, 5])] == [
        None,
        5,
        None,
        None,
        5,
    ]
