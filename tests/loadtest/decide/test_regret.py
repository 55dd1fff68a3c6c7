"""Regret against values worked out by hand, and the intervals of simulated rehearsals."""

import math

import pytest

from loadtest.decide.paired import Ratio, spend_alpha
from loadtest.decide.regret import Regret, Rule, check_regret, find_regret
from tests.loadtest.rehearsals import Scenario, run

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
    assert (regret.over_best.low or 9) < 1.0 < (regret.over_best.high or 0)


def test_an_interval_over_two_repeats_is_students_with_the_scatter_of_all_arms() -> None:
    """Logarithms of the three arms' runs: +-a, +-a and -+a. The squares of all three degrees of freedom are 6 a^2; of
    these the compared pair has 4 a^2, and its own scatter counts for a third.
    """
    a, t = 0.01, 3.1824 * 1.047  # of Student's t at 0.05 with 3, and at the part of it that is spent
    arms = {
        name: [[own * math.exp(sign * a)] * 100, [own * math.exp(-sign * a)] * 100]
        for name, own, sign in (("low", 1.0, 1), ("high", 2.0, 1), ("routed", 1.1, -1))
    }
    ratio = find_regret("routed", arms, ("low", "high"), most=2).over_best
    variance = 2 * (4 * a**2 + 2 * 2 * a**2) / 3
    assert ratio.value == pytest.approx(1.1, rel=1e-3)
    assert ratio.high is not None
    assert math.log(ratio.high / 1.1) == pytest.approx(t * math.sqrt(variance / 2), rel=0.02)


def test_what_all_arms_of_a_repeat_share_does_not_widen_the_interval() -> None:
    def reach(drift: float) -> float:
        arms = {
            name: [[own * (1 + drift * repeat + 0.001 * (repeat * place % 3))] * 100 for repeat in range(5)]
            for place, (name, own) in enumerate({"low": 1.0, "high": 2.0, "routed": 1.1}.items())
        }
        ratio = find_regret("routed", arms, ("low", "high"), most=5).over_best
        assert ratio.low is not None
        return math.log(ratio.value / ratio.low)

    assert 0 < reach(0.1) < 2 * reach(0.0)


def test_an_engine_that_scatters_out_of_all_proportion_does_not_widen_the_others_interval() -> None:
    def reach(loud: float) -> float:
        signs = (1, -1, 1, 0, -1)
        arms = {
            name: [[own * (1 + part * sign)] * 100 for sign in signs[place:] + signs[:place]]
            for place, (name, own, part) in enumerate((("low", 1.0, 0.01), ("high", 3.0, loud), ("routed", 1.1, 0.01)))
        }
        ratio = find_regret("routed", arms, ("low", "high"), most=5).over_best
        assert ratio.low is not None
        return math.log(ratio.value / ratio.low)

    assert reach(0.5) < 3 * reach(0.01)


def test_blocks_of_a_trace_that_differ_between_repeats_widen_an_interval_whose_runs_agree() -> None:
    """Each run's mean is the same; one part of the trace is slower in one repeat, another part in the next."""
    arms = {"low": [[1.0] * 100] * 2, "high": [[2.0] * 100] * 2, "routed": [[1.0] * 100] * 2}
    assert find_regret("routed", arms, ("low", "high"), 2).over_best == Ratio(1.0, 1.0, 1.0)
    arms["routed"] = [[1.1] * 50 + [0.9] * 50, [0.9] * 50 + [1.1] * 50]
    ratio = find_regret("routed", arms, ("low", "high"), 2).over_best
    assert (ratio.low or 1) < 0.95
    arms["routed"] = [[1.1] * 50 + [0.9] * 50] * 2  # a part that is slower in every repeat is not chance
    assert find_regret("routed", arms, ("low", "high"), 2).over_best.low == pytest.approx(1.0)


def test_looks_spend_an_alpha_that_grows_towards_the_last_and_one_look_nearly_all() -> None:
    alphas = spend_alpha(5)
    assert list(alphas) == sorted(alphas)
    assert alphas[0] < 0.002
    assert 0.039 < alphas[-1] < 0.045  # O'Brien and Fleming's last look is as close to the whole
    assert list(spend_alpha(2)) == pytest.approx([0.045], rel=0.01)
    assert len(spend_alpha(100)) == 99


@pytest.mark.parametrize("scatter", [0.02, 0.05, 0.1])
def test_intervals_hold_the_truth_and_a_policy_at_the_limit_is_hardly_ever_called_worse(scatter: float) -> None:
    """0.92 and 0.03 are promised; 150 runs that keep them have fewer than 0.87 and more than 0.07 once in 200 times."""
    score = run(Scenario(1.05, scatter, requests=300), 150, seed=1)
    assert score.coverage >= 0.87
    assert score.worse <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize("rival", [1.0, 1.03, 1.3])
@pytest.mark.parametrize("scatter", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("truth", [1.0, 1.05])
def test_thousand_intervals_hold_the_truth(truth: float, scatter: float, rival: float) -> None:
    score = run(Scenario(truth, scatter, rival=rival), 1000)
    assert score.coverage >= 0.92
    assert score.worse <= 0.03


@pytest.mark.slow
def test_a_policy_that_is_a_tenth_slower_is_called_worse_within_five_repeats() -> None:
    assert run(Scenario(1.1, 0.02, requests=2000), 1000).worse >= 0.8


@pytest.mark.parametrize(
    ("ratio", "status", "message"),
    [
        (Ratio(1.04, 1.03, 1.05), "passed", "takes 1.04 times as long as with vllm alone, while the load changes"),
        (Ratio(1.30, 1.06, 1.54), "failed", "Use vllm alone"),
        (Ratio(1.30, 1.04, 1.56), "warning", "1.04 to 1.56 holds the limit of 1.05. The policy stays."),
        (Ratio(1.30, 1.04, 1.56), "warning", "--rehearsals 10"),
        (Ratio(0.80, 0.79, 0.81), "passed", "takes 0.80 times"),
        (Ratio(1.90), "warning", "one rehearsal has no interval"),
        (Ratio(0.90), "warning", "one rehearsal has no interval"),
    ],
)
def test_only_a_sure_loss_is_refused_and_a_doubt_is_reported(ratio: Ratio, status: str, message: str) -> None:
    alone = {
        name: Regret(Ratio(1.0), Ratio(1.0), mean_s, 2 * mean_s)
        for name, mean_s in {"triton": 1.2, "vllm": 1.0}.items()
    }
    check = check_regret(Regret(Ratio(1.1), ratio, ratio.value, 3.0), alone, Rule(0.05, 5))
    assert check.status == status
    assert message in check.message
