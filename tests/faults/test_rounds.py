"""The arithmetic of `python -m tests.faults.rounds`, as tables."""

import math

import pytest

from tests.faults.rounds.figures import Bound, draw, find_greatest, find_lower_bound, percentile, ratio
from tests.faults.rounds.flood import Phase, find_delay, find_goodput
from tests.faults.rounds.load import Seen, space

WHOLE = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


def answered(ended_at: float, back_at: float | None = None) -> Seen:
    return Seen("rest", 0.0, status=200, ttft_s=0.1, ended_at=ended_at, back_at=back_at, tail=WHOLE)


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        (Bound("", 1.0, most=1.0), "MET"),
        (Bound("", 1.1, most=1.0), "MISSED"),
        (Bound("", 0.9, least=1.0), "MISSED"),
        (Bound("", 0, most=0), "MET"),
        (Bound("", math.inf, most=1.0), "MISSED"),
        (Bound("", math.nan, most=1.0), "MISSED"),
        (Bound("", None, most=1.0), "MISSED (not measured)"),
    ],
)
def test_a_bound_is_met_by_a_number_within_it(bound: Bound, verdict: str) -> None:
    assert bound.verdict == verdict


def test_the_lower_bound_is_students() -> None:
    assert find_lower_bound([1.0, 1.2, 1.1]) == pytest.approx(1.1 - 4.302653 * 0.1 / math.sqrt(3))
    assert find_lower_bound([1.0]) is None


def test_percentiles_lie_between_samples() -> None:
    assert percentile([1.0, 2.0, 3.0], 0.95) == pytest.approx(2.9)
    assert percentile([], 0.95) is None


def test_what_could_not_be_measured_has_no_ratio_and_no_greatest() -> None:
    assert ratio(1.0, None) is None
    assert find_greatest([1.0, None]) is None
    assert find_greatest([]) is None
    assert find_greatest([1.0, 2.0]) == 2.0


def test_goodput_counts_whole_answers_that_end_in_the_window() -> None:
    cut = Seen("rest", 0.0, status=200, ttft_s=0.1, ended_at=6.0, tail=b'data: {"error":{}}\n\n')
    refused = Seen("rest", 0.0, status=429, retry_after_s=3.0, ended_at=6.0)
    assert find_goodput([answered(4.9), answered(5.0), answered(9.0), answered(10.0), cut, refused], 5.0, 10.0) == 0.4


def test_a_request_without_a_token_took_for_ever() -> None:
    phase = Phase(10.0, {"urgent": [answered(1.0)] * 9 + [Seen("urgent", 0.0)]})
    assert phase.p95("urgent") == math.inf


@pytest.mark.parametrize(("back_at", "delay"), [(50.0, 10.0), (65.0, 5.0)])
def test_an_obedient_clients_delay_counts_from_the_floods_end_or_when_it_was_to_come(
    back_at: float, delay: float
) -> None:
    assert find_delay(answered(70.0, back_at), flood_ends=60.0) == delay


def test_a_table_has_its_columns_in_line() -> None:
    assert draw(("round", "s"), [(1, 0.25), (12, None)]) == "round     s\n1      0.25\n12        -"


def test_requests_are_spaced_evenly() -> None:
    assert list(space(2.0, 2.0)) == [0.25, 0.75, 1.25, 1.75]
