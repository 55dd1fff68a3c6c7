"""Numbers of several workers in one map: added up, named alike, and kept when a worker is replaced."""

from dataclasses import replace

import pytest

from gateway.metrics.names import CAPACITY, OTHER_NAME
from gateway.metrics.tally import OUTCOMES, PROMPT, REFUSED, TTFT_BUCKETS_S, Tally
from tests.fakes.seats import make_seats

BACKENDS = {"llama": ("triton", "vllm"), "qwen": ("vllm",)}


@pytest.fixture
def tallies() -> list[Tally]:
    """Of two workers."""
    return [Tally(BACKENDS, seat) for seat in make_seats(2)]


def test_what_workers_count_adds_up_in_each_of_them(tallies: list[Tally]) -> None:
    for tally, times in zip(tallies, (2, 3), strict=True):
        for _ in range(times):
            tally.count(tally.pairs["llama", "vllm"].users, "stop", prompt_tokens=10, completion_tokens=5)
    for tally in tallies:
        users = tally.pairs["llama", "vllm"].users
        assert dict(tally.by_name(users + OUTCOMES)) == {"stop": 5}
        assert tally.total(users + PROMPT) == 50


def test_a_counter_never_falls_and_stays_where_it_can_hold_no_more(tallies: list[Tally]) -> None:
    tally = tallies[0]
    users = tally.pairs["qwen", "vllm"].users
    for amount, total in ((5, 5), (-3, 5), (2**63 - 7, 2**63 - 2), (10**30, 2**63 - 1), (1, 2**63 - 1)):
        tally.count(users, "stop", prompt_tokens=amount, completion_tokens=amount, events=amount)
        assert tally._own_counts[users + PROMPT] == total
    assert dict(tally.by_name(users + OUTCOMES)) == {"stop": 5}


def test_nothing_is_counted_anywhere_else(tallies: list[Tally]) -> None:
    """Each word of a row has one meaning: counting everything once makes every count one."""
    counted = 0
    for pair in tallies[0].pairs.values():
        for traffic in (pair.users, pair.runs):
            tallies[0].count(traffic, f"outcome {counted}", 1, 1, events=1)
            counted += 1
        for histogram in (pair.ttft, pair.tpot, pair.e2e):
            for value in (*histogram.bounds, 1e9):
                tallies[0].observe(histogram, value)
    tallies[0].refuse("outcome 0")
    tallies[0].note_tasks(1)
    words = [word for word in range(len(tallies[0]._own_counts)) if tallies[0].total(word)]
    sums = {histogram.sum for pair in tallies[0].pairs.values() for histogram in (pair.ttft, pair.tpot, pair.e2e)}
    assert {tallies[0].total(word) for word in words if word not in sums} == {1}
    assert all(list(tallies[0].by_name(pair.users + OUTCOMES)) for pair in tallies[0].pairs.values())


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (0.005, 0), (0.0051, 1), (30.0, 18), (31.0, 19)])
def test_a_value_falls_into_the_first_bucket_that_holds_it(tallies: list[Tally], seconds: float, bucket: int) -> None:
    histogram = tallies[0].pairs["qwen", "vllm"].ttft
    tallies[1].observe(histogram, seconds)
    buckets = tallies[0].buckets(histogram)
    assert [bound for bound, _ in buckets] == [*TTFT_BUCKETS_S, float("inf")]
    assert [count for _, count in buckets] == [0] * bucket + [1] * (len(buckets) - bucket)
    assert tallies[0].seconds(histogram) == seconds


def test_workers_agree_on_names_whoever_met_them_first(tallies: list[Tally]) -> None:
    first, second = tallies
    first.refuse("overloaded")
    second.refuse("invalid_value")
    first.refuse("invalid_value")
    assert dict(first.by_name(REFUSED)) == dict(second.by_name(REFUSED)) == {"overloaded": 1, "invalid_value": 2}


def test_names_beyond_the_room_count_as_other(tallies: list[Tally]) -> None:
    for number in range(CAPACITY + 5):
        tallies[number % 2].refuse(f"code_{number}")
    tallies[0].refuse("x" * 100)
    tallies[0].refuse("code_1")
    counts = dict(tallies[1].by_name(REFUSED))
    assert len(counts) == CAPACITY
    assert (counts["code_1"], counts[OTHER_NAME]) == (2, 7)


def test_a_worker_that_takes_over_a_row_counts_on_from_there(tallies: list[Tally]) -> None:
    seats = [replace(seat, index=0, workers=1) for seat in make_seats(2)]
    for total, seat in enumerate(seats, 1):
        successor = Tally(BACKENDS, seat)
        successor.refuse("overloaded")
        assert dict(successor.by_name(REFUSED)) == {"overloaded": total}
