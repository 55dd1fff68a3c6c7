import pytest

from loadtest.results.percentiles import P90_SAMPLES, P99_SAMPLES, min_samples, percentiles


@pytest.mark.parametrize(
    ("quantile", "confidence", "samples"), [(0.99, 0.99, 662), (0.99, 0.95, 473), (0.9, 0.99, 64), (0.9, 0.95, 46)]
)
def test_sample_floors_are_those_of_mlperf(quantile: float, confidence: float, samples: int) -> None:
    assert min_samples(quantile, confidence) == samples


def test_percentiles_interpolate_linearly_over_the_values_that_are_known() -> None:
    assert percentiles([4.0, None, 1.0, 2.0, 3.0]).p50 == 2.5
    assert percentiles([None]).p50 is None


@pytest.mark.parametrize(
    ("n", "has_p90", "has_p99"),
    [(1, False, False), (P90_SAMPLES - 1, False, False), (P90_SAMPLES, True, False), (P99_SAMPLES, True, True)],
)
def test_tail_percentiles_are_missing_where_samples_are_too_few(n: int, has_p90: bool, has_p99: bool) -> None:
    found = percentiles([float(value) for value in range(n)])
    assert found.n == n
    assert (found.p90 is not None, found.p99 is not None) == (has_p90, has_p99)
