from itertools import pairwise

import pytest

from loadtest.client.arrivals import Arrivals


def test_constant_arrivals_are_evenly_spaced_and_poisson_ones_are_not() -> None:
    constant = Arrivals(10.0, None, "constant").within(5.0)
    assert constant == pytest.approx([number / 10 for number in range(1, 51)])
    due = Arrivals(10.0, seed=1).within(500.0)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)  # exponential


def test_a_ramp_has_its_rates_at_its_ends_and_their_mean_in_all() -> None:
    due = Arrivals(10.0, 90.0, "constant").within(10.0)
    assert len(due) == 500
    assert len([at for at in due if at < 1]) == pytest.approx(14, abs=1)
    assert len([at for at in due if at >= 9]) == pytest.approx(86, abs=1)


@pytest.mark.parametrize("rates", [(0.0, None), (-1.0, None), (1.0, 0.0), (float("inf"), None)])
def test_a_rate_that_is_none_is_refused(rates: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match="rate is a number of requests per second above 0"):
        Arrivals(*rates)
