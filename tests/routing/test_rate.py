"""How fast requests arrive, by counts: a jump at once, a small change with time."""

import random

import pytest

from gateway.core import Arrivals
from gateway.routing.policies.curve.rate import find_rate

EVIDENCE = 4.5


def sample(*rates: float) -> list[Arrivals]:
    """Exact arrivals at one rate after another, for 0.05 s each."""
    samples = [Arrivals(0.0, 0)]
    total = 0.0
    for index, rate in enumerate(rates, 1):
        total += rate * 0.05
        samples.append(Arrivals(0.05 * index, round(total)))
    return samples


def test_a_rate_needs_two_samples_and_is_doubted_at_first() -> None:
    assert find_rate([Arrivals(1.0, 10)], EVIDENCE) == 0.0
    assert find_rate([Arrivals(1.0, 10), Arrivals(1.05, 14)], EVIDENCE) == pytest.approx(40)  # not 80
    assert find_rate([Arrivals(1.0, 10), Arrivals(2.0, 30)], EVIDENCE) == pytest.approx(19, rel=0.01)


def test_a_jump_counts_at_once_and_a_small_change_with_time() -> None:
    """What was there before a jump counts for 0.05 s more."""
    assert find_rate(sample(*[8] * 60, *[160] * 6), EVIDENCE) == pytest.approx(138, rel=0.02)
    assert find_rate(sample(*[160] * 60, *[8] * 20), EVIDENCE) == pytest.approx(15, rel=0.1)
    assert find_rate(sample(*[100] * 70, *[120] * 6), EVIDENCE) == pytest.approx(102, rel=0.02)
    assert find_rate(sample(*[100] * 60, *[120] * 60), EVIDENCE) == pytest.approx(120, rel=0.02)
    assert find_rate(sample(*[100] * 70, *[120] * 6), 0.1) == pytest.approx(117, rel=0.02)


def test_chance_alone_is_rarely_taken_for_a_jump() -> None:
    """By default a Poisson rate of 110 a second strays beyond a tenth in few of all beats."""
    draw, at, arrived, jumps = random.Random(1), 0.0, 0, 0
    samples = [Arrivals(0.0, 0)]
    due = draw.expovariate(110)
    for beat in range(1, 2001):
        at = 0.05 * beat
        while due <= at:
            arrived, due = arrived + 1, due + draw.expovariate(110)
        samples = [*samples[-127:], Arrivals(at, arrived)]
        if beat > 60:
            jumps += abs(find_rate(samples, EVIDENCE) - 110) > 25
    assert jumps < 20
