"""The arithmetic of `python -m tests.faults.rounds`, as tables."""

import asyncio
import math
from typing import cast

import pytest

from tests.fakes.h2 import DATA, HEADERS, frame
from tests.faults.proxy import Link
from tests.faults.rounds.alarms import BEGUN_FRAMES, HalfSilent
from tests.faults.rounds.figures import Bound, draw, find_greatest, find_lower_bound, percentile, ratio
from tests.faults.rounds.flood import Phase, find_delay, find_goodput
from tests.faults.rounds.load import Seen, space
from tests.faults.rounds.loss import find_fault, find_pause
from tests.system.site import StreamedAnswer

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


@pytest.mark.parametrize(
    ("times", "pause"),
    [
        ([0.0, 1.0, 1.2, 2.5, 2.6], 1.3),  # the first one ended before the loss
        ([0.0, 1.0], None),
    ],
)
def test_a_pause_ends_after_the_loss(times: list[float], pause: float | None) -> None:
    assert find_pause(times, lost_at=1.1) == (None if pause is None else pytest.approx(pause))


@pytest.mark.parametrize(("text", "tokens", "is_right"), [("a b", 2, True), ("a a b", 3, False), ("b", 1, False)])
def test_a_token_twice_or_a_missing_one_is_a_fault(text: str, tokens: int, is_right: bool) -> None:
    answer = StreamedAnswer(200, text=text, finish_reason="length", completion_tokens=tokens, is_done=True)
    assert (find_fault(answer, 2, "a b") is None) is is_right


class Gateway:
    """What a proxy writes to."""

    def __init__(self) -> None:
        self.got = b""

    def write(self, data: bytes) -> None:
        self.got += data

    async def drain(self) -> None:
        pass


async def test_half_of_the_begun_streams_are_silent_for_a_while_and_lose_nothing() -> None:
    fault, gateway = HalfSilent(is_grpc=True), Gateway()
    writer = cast("asyncio.StreamWriter", gateway)
    link = Link(writer, writer)
    begun = b"".join(frame(DATA, 0, stream, b"begun") for stream in (1, 3) for _ in range(BEGUN_FRAMES))
    await fault.answer(link, begun)
    fault.hush(0.05)
    held, passed = frame(DATA, 0, 3, b"held"), frame(DATA, 0, 1, b"passed")
    await fault.answer(link, held + passed[:4])
    await fault.answer(link, passed[4:])
    assert gateway.got == begun + passed
    await asyncio.sleep(0.06)
    await fault.answer(link, passed)
    assert gateway.got == begun + passed + held + passed
    fault.hush(5.0)
    end = frame(HEADERS, 0, 3, b"trailers")
    await fault.answer(link, held + end)  # what ends a stream comes after its data
    assert gateway.got.endswith(held + end)
