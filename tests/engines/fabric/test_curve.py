"""Medians, bus bandwidth, the latency's fit and times between sizes."""

import pytest

from engines.fabric.curve import Curve, Sample, Timing, find_bus_bandwidth, fit_latency


def make_curve(times: dict[int, list[float]], way: str = "graph", ranks: int = 2) -> Curve:
    return Curve.of(ranks, way, [Sample(way, size, t) for size in times for t in times[size]])


@pytest.mark.parametrize(("ranks", "share"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_that_of_nccl_tests(ranks: int, share: float) -> None:
    assert find_bus_bandwidth(1e9, 0.004, ranks) == pytest.approx(share * 250e9)


def test_a_size_has_its_median_and_the_spread_of_its_repeats() -> None:
    curve = make_curve({2048: [3.0, 1.0, 1.1], 1024: [1.0]})
    assert [timing.size for timing in curve.timings] == [1024, 2048]
    assert curve.timings[1] == Timing(2048, 1.1, 1.0, 3.0, 3)
    assert curve.timings[1].spread == pytest.approx(2.0 / 1.1)
    assert curve.floor_s == 1.0


def test_the_best_size_is_that_of_the_highest_bandwidth_not_of_the_shortest_time() -> None:
    assert make_curve({1000: [1.0], 4000: [2.0], 8000: [8.0]}).best.size == 4000


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(10, 1.0), (1000, 1.0), (2000, 2.0), (4000, 4.0), (100_000, 16.0), (200_000, 32.0)],
    ids=["below", "smallest", "between", "measured", "largest", "beyond"],
)
def test_time_of_any_size(size: int, seconds: float) -> None:
    curve = make_curve({1000: [1.0], 4000: [4.0], 100_000: [16.0]})
    assert curve.find_time_s(size) == pytest.approx(seconds)


def test_fit_finds_latency_and_bandwidth_of_a_line() -> None:
    curve = make_curve({size: [8e-6 + size / 400e9] for size in (1 << 10, 1 << 20, 1 << 30)})
    fit = fit_latency(curve.timings)
    assert fit is not None
    assert fit.latency_s == pytest.approx(8e-6)
    assert fit.bytes_per_s == pytest.approx(400e9)
    assert fit.worst == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("times", [{1024: [1.0]}, {1024: [2.0], 2048: [1.0]}], ids=["one size", "falling"])
def test_no_line_is_made_of_what_is_none(times: dict[int, list[float]]) -> None:
    assert fit_latency(make_curve(times).timings) is None
