"""Regret against values worked out by hand."""

import pytest

from loadtest.decide.regret import Ratio, Regret, check_regret, find_regret

# Two windows of 50 requests: one engine is better in the first, the other in the second.
LOW = [[1.0] * 50 + [4.0] * 50]
HIGH = [[2.0] * 50 + [2.0] * 50]
ARMS = {"low": LOW, "high": HIGH, "routed": [[1.1] * 50 + [2.2] * 50]}


def test_regret_is_over_the_better_engine_of_each_window() -> None:
    regret = find_regret("routed", ARMS, ("low", "high"))
    assert regret.regret.value == pytest.approx(1.1)
    assert regret.over_best.value == pytest.approx(165 / 200)
    assert (regret.regret.low, regret.regret.high) == (None, None)
    assert regret.mean_s == pytest.approx(1.65)
    assert regret.p99_s == 2.2
    assert find_regret("high", ARMS, ("low", "high")).regret.value == pytest.approx(200 / 150)
    assert find_regret("high", ARMS, ("low", "high")).over_best.value == 1.0


def test_windows_are_of_at_least_fifty_requests() -> None:
    """With 99 there is one window, in which `high` is better."""
    arms = {name: [times[0][:99]] for name, times in ARMS.items()}
    assert find_regret("high", arms, ("low", "high")).regret.value == 1.0
    few = {name: [times[0][:3]] for name, times in ARMS.items()}
    assert find_regret("routed", few, ("low", "high")).regret.value == pytest.approx(1.1)


def test_the_better_engine_is_that_of_the_mean_over_all_repeats() -> None:
    """Each of two like engines is better once: the minimum of single repeats would be too low."""
    arms = {"low": [[1.0] * 50, [3.0] * 50], "high": [[3.0] * 50, [1.0] * 50], "routed": [[2.0] * 50, [2.0] * 50]}
    regret = find_regret("routed", arms, ("low", "high"))
    assert regret.regret.value == pytest.approx(1.0)
    assert regret.regret.low is not None
    assert regret.regret.high is not None
    assert regret.regret.low <= 1.0 <= regret.regret.high
    assert regret.regret.high == pytest.approx(2.0)  # one repeat twice


def test_one_seed_gives_one_interval() -> None:
    arms = {name: [times[0], [time * 1.1 for time in times[0]]] for name, times in ARMS.items()}
    assert find_regret("routed", arms, ("low", "high"), 3) == find_regret("routed", arms, ("low", "high"), 3)


@pytest.mark.parametrize(
    ("ratio", "status", "message"),
    [
        (Ratio(1.04, 1.03, 1.05), "passed", "takes 1.04 times as long as with vllm alone, while the load changes"),
        (Ratio(1.30, 1.06, 1.54), "failed", "Use vllm alone"),
        (Ratio(1.30, 1.04, 1.56), "passed", "takes 1.30 times"),  # too noisy to refuse a policy for
        (Ratio(0.80, 0.79, 0.81), "passed", "takes 0.80 times"),
        (Ratio(1.06), "failed", "REGRET: with routing live, an answer takes 1.06 times as long"),
        (Ratio(1.04), "passed", "takes 1.04 times"),
    ],
)
def test_only_a_sure_loss_is_refused(ratio: Ratio, status: str, message: str) -> None:
    alone = {
        name: Regret(Ratio(1.0), Ratio(1.0), mean_s, 2 * mean_s)
        for name, mean_s in {"triton": 1.2, "vllm": 1.0}.items()
    }
    check = check_regret(Regret(Ratio(1.1), ratio, ratio.value, 3.0), alone, 0.05)
    assert check.status == status
    assert message in check.message
