"""The least mean time, against values worked out by hand."""

import pytest

from loadtest.decide.optimum import FluidEngine, FluidNode

STEADY = FluidEngine(lambda _: 0.01, 1000)  # as fast with many as with one
SLOW = FluidEngine(lambda _: 0.02, 1000)
LINEAR = FluidEngine(lambda in_flight: 0.01 * max(in_flight, 1.0), 100)  # one at a time
TOKENS = 10


def even(rate: float, count: int = 100) -> list[float]:
    return [index / rate for index in range(count)]


@pytest.mark.parametrize("interference", [0.0, 1.0])
def test_all_go_to_the_faster_engine_where_many_take_no_longer(interference: float) -> None:
    node = FluidNode((SLOW, STEADY), interference, TOKENS)
    assert node.find_optimum(even(50.0)) == pytest.approx(TOKENS * 0.01)


def test_in_flight_is_rate_times_time() -> None:
    """step = 0.01 (1 + n), n = rate x 10 steps: at 5 a second n = 0.5 (1 + n), so n = 1 and a step takes 0.02 s."""
    engine = FluidEngine(lambda in_flight: 0.01 * (1 + in_flight), 1000)
    assert FluidNode((engine, engine), 0.0, TOKENS).settle(5.0, 1.0) == pytest.approx(TOKENS * 0.02, rel=1e-4)


def test_two_like_engines_share_the_load_in_halves_on_gpus_of_their_own_and_not_on_the_same() -> None:
    """Halves: n = 0.25 (1 + n), n = 1/3. On the same GPUs the second engine would add a whole step to each."""
    engine = FluidEngine(lambda in_flight: 0.01 * (1 + in_flight), 1000)
    assert FluidNode((engine, engine), 0.0, TOKENS).find_best(5.0) == pytest.approx(TOKENS * 0.04 / 3, rel=1e-4)
    assert FluidNode((engine, engine), 1.0, TOKENS).find_best(5.0) == pytest.approx(TOKENS * 0.02, rel=1e-4)


def test_an_engine_holds_no_more_than_its_most() -> None:
    """Half of an endless rate each: 100 in flight, a second a step."""
    assert FluidNode((LINEAR, LINEAR), 0.0, TOKENS).settle(1e9, 0.5) == pytest.approx(TOKENS * 1.0)


def test_each_window_has_its_own_best_engine() -> None:
    """Quiet for 50 arrivals, then busy for 50: the first engine is better at first, the second later."""
    few = FluidEngine(lambda in_flight: 0.01 if in_flight <= 1 else 0.1, 1000)
    arrivals_s = [*even(1.0, 50), *(50 + moment for moment in even(100.0, 50))]
    node = FluidNode((few, SLOW), 1.0, TOKENS)
    assert node.find_optimum(arrivals_s) == pytest.approx((TOKENS * 0.01 + TOKENS * 0.02) / 2)


def test_moments_that_are_all_the_same_are_no_load() -> None:
    assert FluidNode((STEADY, SLOW), 0.0, TOKENS).find_optimum([3.0]) == pytest.approx(TOKENS * 0.01)
