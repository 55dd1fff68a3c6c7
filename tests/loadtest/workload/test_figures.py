"""The figures of an open loop, from answers written down exactly."""

import pytest

from loadtest.decide.cost import EVERY, Cost, Price
from loadtest.decide.slo import Slo
from loadtest.results.percentiles import Percentiles
from loadtest.workload.figures import Figures, add_cost, figures_of_answers
from tests.loadtest.samples import make_answer


def test_latency_counts_from_when_a_request_was_due() -> None:
    answer = make_answer(5.5, [6.0, 6.1, 6.2])
    answer.due_at = 5.0
    found = figures_of_answers([answer], 4.0, 8.0, Slo(ttft_s=0.9))
    assert (found.ttft_s.p50, found.e2e_s.p50) == pytest.approx((1.0, 1.2))
    assert found.lag_s is not None
    assert found.lag_s.p50 == pytest.approx(0.5)
    assert found.tokens_per_s == pytest.approx(3 / 4)
    assert found.goodput == 0
    assert found.doubts[0].startswith("CLIENT-BOUND: requests left 500.0 ms late")


def test_requests_that_pile_up_are_doubted_but_in_a_ramp() -> None:
    answers = [make_answer(at / 10, [at / 10 + at / 20]) for at in range(100)]
    for answer in answers:
        answer.due_at = answer.started_at
    found = figures_of_answers(answers, 0.0, 10.0, None)
    assert any("does not keep up with this rate" in doubt for doubt in found.doubts)
    assert figures_of_answers(answers, 0.0, 10.0, None, is_ramp=True).doubts == ()


def test_costs_are_added_where_they_are_known() -> None:
    times = Percentiles(50, 0.02, 0.03)
    figures = Figures(50, 10.0, 1000.0, 5.0, 8.0, times, times, times)
    priced = add_cost(figures, Cost(gpus={EVERY: 2}, price=Price(3.6)), "")
    assert priced.tokens_per_gpu_hour == pytest.approx(1.8e6)
    assert priced.cost_per_million_tokens == pytest.approx(2.0)
    assert add_cost(figures, Cost(), "") == figures
