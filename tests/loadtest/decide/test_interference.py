"""Interference by hand, and of simulated engines whose interference is known."""

import random

import pytest

from loadtest.decide.interference import Interference, Round, Share, find_interference


def test_interference_is_the_extra_time_of_a_step_by_its_time_alone() -> None:
    found = find_interference([Round(low=(10, 10), high=(20, 20), low_beside=16, high_beside=24)])
    assert [share.value for share in (found.low, found.high, found.mean)] == pytest.approx([0.6, 0.2, 0.4])
    assert found.mean.ends is None


def test_a_steady_drift_within_a_round_falls_out() -> None:
    """Each of the five cells takes 1 % of its engine's step longer than the one before."""
    drifting = Round(low=(10.0, 10.4), high=(20.2, 20.6), low_beside=16.2, high_beside=24.4)
    steady = find_interference([Round(low=(10.2, 10.2), high=(20.4, 20.4), low_beside=16.2, high_beside=24.4)])
    assert find_interference([drifting]) == steady


def test_the_interval_is_students_over_the_rounds() -> None:
    rounds = [Round((10, 10), (20, 20), beside, 24) for beside in (15.8, 16.0, 16.2)]
    share = find_interference(rounds).low
    assert share.value == pytest.approx(0.6)
    assert share.dof == 2
    assert share.ends == pytest.approx((0.6 - 4.3027 * 0.02 / 3**0.5, 0.6 + 4.3027 * 0.02 / 3**0.5), rel=1e-4)
    assert find_interference([rounds[0]] * 2).low.ends == pytest.approx((0.58, 0.58))
    assert (share - Share(0.1)).ends is None
    assert (share - share).dof == pytest.approx(4)
    same = find_interference([rounds[0]] * 2).low
    assert (same - same).ends == (0.0, 0.0)


def measure(chance: random.Random, rounds: int) -> Interference:
    """Steps of 12 and 9 ms, interference 0.3 and 0.4, cells with 2 % of noise, 5 % of drift over a round."""

    def cell(step_ms: float, place: int) -> float:
        return step_ms * (1 + 0.01 * place) * (1 + chance.gauss(0, 0.02))

    return find_interference([
        Round(
            low=(cell(12, 0), cell(12, 4)),
            high=(cell(9, 1), cell(9, 3)),
            low_beside=cell(12 * 1.3, 2),
            high_beside=cell(9 * 1.4, 2),
        )
        for _ in range(rounds)
    ])


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_equal_interference_differs_by_nothing_in_eighteen_of_twenty_runs(rounds: int) -> None:
    chance, runs, holding = random.Random(rounds), 1000, {"low": 0, "high": 0, "mean": 0, "truth": 0}
    for _ in range(runs):
        first, second = measure(chance, rounds), measure(chance, rounds)
        for name in ("low", "high", "mean"):
            low, high = (getattr(first, name) - getattr(second, name)).ends or (1, 1)
            holding[name] += low <= 0 <= high
        low, high = first.mean.ends or (1, 1)
        holding["truth"] += low <= 0.35 <= high
    assert min(holding.values()) >= 0.92 * runs  # 18 of 20, and what 1,000 runs may miss it by
    assert holding["truth"] <= 0.97 * runs
