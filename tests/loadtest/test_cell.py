"""A closed loop written down exactly: what its cell must say."""

from dataclasses import replace

import pytest

from loadtest.answer import Answer
from loadtest.cell import Recording, Tick, summarise
from loadtest.plan import Pair
from tests.loadtest.samples import make_answer

STREAMS, TOKENS, STEP_S = 4, 10, 0.1
TICKS = tuple(Tick(at=0.05 * n, lag_s=0.2 if n == 50 else 0.001, cpu_s=0.005 * n, machine_load=0.4) for n in range(200))


def record_steady_loop() -> Recording:
    """Four streams spread over a request time of one second, a token each 0.1 s, measured from 2 s to 5 s."""
    answers = [
        make_answer(start, [start + STEP_S * (token + 1) for token in range(TOKENS)])
        for start in (0.25 * stream + number for number in range(6) for stream in range(STREAMS))
    ]
    return Recording("triton", Pair(STREAMS, low_first=True, number=3), 2.0, 5.0, tuple(answers), TICKS)


def test_throughput_is_tokens_in_the_window_over_its_length() -> None:
    assert summarise(record_steady_loop(), TOKENS).throughput == pytest.approx(STREAMS / STEP_S)


def test_only_requests_that_began_in_the_window_have_latencies() -> None:
    cell = summarise(record_steady_loop(), TOKENS)
    assert cell.ttft_s.p50 == pytest.approx(STEP_S)
    assert cell.tpot_s.p50 == pytest.approx(STEP_S)
    assert cell.e2e_s.p50 == pytest.approx(TOKENS * STEP_S)
    assert cell.ttft_s.n == STREAMS * 4
    assert cell.requests == STREAMS * 6


def test_a_steady_loop_is_full_in_flight_and_out_of_step() -> None:
    cell = summarise(record_steady_loop(), TOKENS)
    assert cell.in_flight == pytest.approx(STREAMS)
    assert cell.fill == pytest.approx(1.0)
    assert cell.evenness == pytest.approx(1.0, abs=0.05)
    assert cell.phase_order == pytest.approx(0.0, abs=1e-9)


def test_an_answer_cut_off_by_the_end_counts_up_to_there() -> None:
    whole = record_steady_loop()
    cut = Answer(started_at=4.5, status=200, times=[4.6, 4.7], counts=[1, 2])
    cell = summarise(replace(whole, answers=(*whole.answers, cut)), TOKENS)
    assert cell.throughput == pytest.approx(STREAMS / STEP_S + 2 / 3.0)
    assert cell.in_flight == pytest.approx(STREAMS + 0.5 / 3.0)


def test_uncounted_chunks_weigh_their_share_of_usage_also_in_an_answer_cut_off() -> None:
    whole = record_steady_loop()
    for answer in whole.answers:  # two tokens per chunk, and only usage tells
        answer.times, answer.counts, answer.is_counted = answer.times[1::2], [1, 2, 3, 4, 5], False
    cut = Answer(started_at=4.5, status=200, times=[4.7], counts=[1], is_counted=False)
    cell = summarise(replace(whole, answers=(*whole.answers, cut)), TOKENS)
    assert cell.throughput == pytest.approx(STREAMS / STEP_S + 2 / 3.0)
    assert (cell.tokens_per_chunk, cell.counted_by) == (2.0, "chunks")


def test_a_pause_shows_as_less_than_full() -> None:
    whole = record_steady_loop()
    late = tuple(
        make_answer(
            answer.started_at + (1.5 if answer.started_at > 3 else 0), [t + (1.5 if t > 3 else 0) for t in answer.times]
        )
        for answer in whole.answers
    )
    cell = summarise(replace(whole, answers=late), TOKENS)
    assert cell.fill is not None
    assert cell.fill < 0.9
    assert cell.evenness == 0.0


def test_the_clients_own_load_is_that_of_the_window() -> None:
    cell = summarise(record_steady_loop(), TOKENS)
    assert cell.client_cpu == pytest.approx(0.1)
    assert (cell.loop_lag_p99_s, cell.loop_lag_max_s) == (0.001, 0.2)
