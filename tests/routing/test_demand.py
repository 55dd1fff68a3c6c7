"""The coming load: rates from counts, and the counts of all workers as one demand."""

import random

import pytest
from gateway.routing.policies.demand import find_rate

from gateway.core import Arrivals
from gateway.routing.demand import BEAT_S, SAMPLES, DemandCounts, DemandSpans, Held, Lengths
from gateway.shared import Memory, NodeLock, Plan, Seat

BACKENDS = ("low", "high")
EVIDENCE = 3.7


def sample(*rates: float) -> list[Arrivals]:
    """Exact arrivals at one rate after another, for 0.05 s each."""
    samples = [Arrivals(0.0, 0)]
    total = 0.0
    for index, rate in enumerate(rates, 1):
        total += rate * 0.05
        samples.append(Arrivals(0.05 * index, round(total)))
    return samples


def test_a_rate_needs_two_samples() -> None:
    assert find_rate([Arrivals(1.0, 10)], EVIDENCE) == 0.0
    assert find_rate([Arrivals(1.0, 10), Arrivals(2.0, 30)], EVIDENCE) == 20.0


def test_a_jump_counts_at_once_and_a_small_change_with_time() -> None:
    assert find_rate(sample(*[8] * 60, *[160] * 6), EVIDENCE) == pytest.approx(160, rel=0.02)
    assert find_rate(sample(*[160] * 60, *[8] * 6), EVIDENCE) == pytest.approx(8, rel=0.3)
    assert find_rate(sample(*[100] * 60, *[120] * 6), EVIDENCE) == pytest.approx(102, rel=0.02)
    assert find_rate(sample(*[100] * 60, *[120] * 60), EVIDENCE) == pytest.approx(120, rel=0.02)
    assert find_rate(sample(*[100] * 60, *[120] * 6), 0.1) == pytest.approx(120, rel=0.02)


def test_chance_alone_is_rarely_taken_for_a_jump() -> None:
    """By default a Poisson rate of 110 a second strays beyond a tenth in few of all beats."""
    draw, at, arrived, jumps = random.Random(1), 0.0, 0, 0
    samples = [Arrivals(0.0, 0)]
    due = draw.expovariate(110)
    for beat in range(1, 2001):
        at = 0.05 * beat
        while due <= at:
            arrived, due = arrived + 1, due + draw.expovariate(110)
        samples = [*samples[-63:], Arrivals(at, arrived)]
        if beat > 60:
            jumps += abs(find_rate(samples, EVIDENCE) - 110) > 25
    assert jumps < 20


def seats(workers: int) -> list[DemandCounts]:
    plan = Plan()
    spans = DemandSpans.lay(plan, BACKENDS, workers)
    memory = Memory.private(plan.size)
    return [DemandCounts(BACKENDS, spans, Seat(memory, NodeLock(None), index, workers)) for index in range(workers)]


def test_the_demand_is_that_of_all_workers() -> None:
    one, two = seats(2)
    one.arrive(3, None)
    two.arrive(1, "high")
    one.note({"low": Held(0, 500, 4000)}, Lengths(2.0, 300.0, 40.0))
    two.note({"low": Held(1, 100, 300), "high": Held(1, 0, 20)}, Lengths(1.0, 60.0, 50.0))
    demand = one.sample({"low": 5, "high": 2}, 10.0)
    assert demand is not None
    assert demand.arrivals == (Arrivals(10.0, 4),)
    assert demand.backends == {"low": (5, 1, 0.0, 600, 4300), "high": (2, 1, 0.25, 0, 20)}
    assert (demand.answer_tokens, demand.prompt_tokens, demand.in_flight) == (120.0, 30.0, 7)
    two.clear(1)
    later = two.sample({"low": 5, "high": 0}, 11.0)
    assert later is not None
    assert later.backends == {"low": (5, 0, 0.0, 500, 4000), "high": (0, 0, pytest.approx(0.25), 0, 0)}
    assert [sample.total for sample in later.arrivals] == [4, 4]  # what had arrived stays counted


def test_one_worker_plans_in_each_beat_whichever_asks_first() -> None:
    one, two = seats(2)
    none = {"low": 0, "high": 0}
    asked = [(counts, 10.0 + BEAT_S * beat + late) for beat in range(5) for counts, late in ((one, 0), (two, 0.02))]
    answered = [counts.sample(none, now) is not None for counts, now in asked]
    assert answered == [True, False] * 5
    assert two.sample(none, 9.0) is not None  # a clock of another boot, which no sample may stop for ever


def test_it_holds_the_last_seconds() -> None:
    (one,) = seats(1)
    demand = None
    for beat in range(3 * SAMPLES):
        one.arrive(1, None)
        demand = one.sample({"low": 0, "high": 0}, BEAT_S * beat)
    assert demand is not None
    assert len(demand.arrivals) == SAMPLES
    assert [sample.total for sample in demand.arrivals] == list(range(2 * SAMPLES + 1, 3 * SAMPLES + 1))


def test_nothing_known_is_zero() -> None:
    (one,) = seats(1)
    demand = one.sample({"low": 0, "high": 0}, 1.0)
    assert demand is not None
    assert (demand.answer_tokens, demand.prompt_tokens) == (0.0, 0.0)
    assert demand.backends["low"] == (0, 0, 0.0, 0, 0)


def test_what_one_engine_alone_could_serve_is_soon_forgotten() -> None:
    """A load test that pins its requests would else weigh on plans for as long as the gateway lives."""
    (one,) = seats(1)
    for _ in range(1000):
        one.arrive(1, "high")
    shares = []
    for second in range(100):
        for _ in range(10):
            one.arrive(1, None)
        demand = one.sample({"low": 0, "high": 0}, float(second))
        assert demand is not None
        shares.append(demand.backends["high"].fixed_share)
    assert shares[0] == pytest.approx(1000 / 1010)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.05
