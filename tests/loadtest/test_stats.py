import pytest

from loadtest.answer import Answer
from loadtest.stats import (
    P90_SAMPLES,
    P99_SAMPLES,
    e2e_s,
    min_samples,
    percentiles,
    phase_order,
    scale,
    tokens_between,
    tpot_s,
    ttft_s,
)
from tests.loadtest.samples import make_answer


@pytest.mark.parametrize(
    ("quantile", "confidence", "samples"), [(0.99, 0.99, 662), (0.99, 0.95, 473), (0.9, 0.99, 64), (0.9, 0.95, 46)]
)
def test_sample_floors_are_those_of_mlperf(quantile: float, confidence: float, samples: int) -> None:
    assert min_samples(quantile, confidence) == samples


def test_percentiles_interpolate_linearly() -> None:
    assert percentiles([4.0, 1.0, 2.0, 3.0]).p50 == 2.5


@pytest.mark.parametrize(
    ("n", "has_p90", "has_p99"),
    [(1, False, False), (P90_SAMPLES - 1, False, False), (P90_SAMPLES, True, False), (P99_SAMPLES, True, True)],
)
def test_tail_percentiles_are_missing_where_samples_are_too_few(n: int, has_p90: bool, has_p99: bool) -> None:
    found = percentiles([float(value) for value in range(n)])
    assert found.n == n
    assert (found.p90 is not None, found.p99 is not None) == (has_p90, has_p99)


def test_no_samples_have_no_median() -> None:
    assert percentiles([]).p50 is None


def test_latencies_of_one_token_per_event() -> None:
    answer = make_answer(10.0, [10.5, 10.7, 10.9, 11.1])
    assert ttft_s(answer) == pytest.approx(0.5)
    assert e2e_s(answer) == pytest.approx(1.1)
    assert tpot_s(answer) == pytest.approx(0.2)


def test_time_per_token_is_right_however_tokens_are_bundled() -> None:
    bundled = make_answer(10.0, [10.5, 10.7, 10.9, 11.1])
    bundled.times, bundled.counts = [10.7, 11.1], [2, 4]  # the same four tokens in two events
    assert tpot_s(bundled) == pytest.approx(0.2)


def test_uncounted_events_share_the_answers_usage() -> None:
    answer = make_answer(0.0, [1.0, 2.0])
    answer.completion_tokens, answer.is_counted = 8, False
    assert scale(answer) == 4.0
    assert tpot_s(answer) == pytest.approx(1.0 / (8 - 4))


def test_a_single_event_has_no_time_per_token() -> None:
    answer = make_answer(0.0, [1.0])
    assert tpot_s(answer) is None


def test_an_answer_not_begun_has_no_latencies() -> None:
    assert ttft_s(Answer()) is None
    assert e2e_s(Answer()) is None
    assert tpot_s(Answer()) is None


@pytest.mark.parametrize(
    ("start", "end", "tokens"), [(0.0, 9.0, 3), (1.0, 3.0, 2), (0.9, 2.9, 2), (3.0, 9.0, 0), (0.0, 0.5, 0)]
)
def test_tokens_count_where_their_event_falls_in_the_window(start: float, end: float, tokens: int) -> None:
    assert tokens_between(make_answer(0.0, [1.0, 2.0, 3.0]), start, end) == tokens


def test_phase_order_tells_lockstep_from_spread() -> None:
    assert phase_order([5.0] * 16, 2.0) == pytest.approx(1.0)
    assert phase_order([5.0 + 2.0 * number for number in range(16)], 2.0) == pytest.approx(1.0)
    assert phase_order([5.0 + 2.0 * number / 16 for number in range(16)], 2.0) == pytest.approx(0.0, abs=1e-9)
