"""A closed loop written down exactly: the cell that follows from it."""

from dataclasses import replace

import pytest

from loadtest.client.recording import Recording, Tick
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.decide.slo import Slo
from loadtest.results.cell import Cell, Pair, find_phase_order, summarise
from tests.loadtest.samples import make_answer

STREAMS, TOKENS, STEP_S = 4, 10, 0.1
TICKS = tuple(Tick(at=0.05 * n, lag_s=0.2 if n == 50 else 0.001, cpu_s=0.005 * n, machine_load=0.4) for n in range(200))


def record_steady_loop() -> Recording:
    """Four streams spread over a request time of one second, a token each 0.1 s, measured from 2 s to 5 s."""
    answers = [
        make_answer(start, [start + STEP_S * (token + 1) for token in range(TOKENS)])
        for start in (0.25 * stream + number for number in range(6) for stream in range(STREAMS))
    ]
    return Recording(2.0, 5.0, tuple(answers), TICKS)


def sum_up(recording: Recording) -> Cell:
    return summarise(recording, "triton", Pair(STREAMS, low_first=True, number=3), TOKENS)


def test_a_steady_loop_is_full_in_flight_and_out_of_step() -> None:
    cell = sum_up(record_steady_loop())
    assert cell.throughput == pytest.approx(STREAMS / STEP_S)
    assert cell.in_flight == pytest.approx(STREAMS)
    assert cell.fill == pytest.approx(1.0)
    assert cell.evenness == pytest.approx(1.0, abs=0.05)
    assert cell.phase_order == pytest.approx(0.0, abs=1e-9)
    assert (cell.ttft_s.p50, cell.tpot_s.p50, cell.e2e_s.p50) == pytest.approx((STEP_S, STEP_S, TOKENS * STEP_S))
    assert (cell.ttft_s.n, cell.requests) == (STREAMS * 4, STREAMS * 6)  # only those that began in the window; all


def test_an_answer_cut_off_by_the_end_counts_up_to_there() -> None:
    whole = record_steady_loop()
    cut = StreamedAnswer(started_at=4.5, status=200, times=[4.6, 4.7], counts=[1, 2])
    cell = sum_up(replace(whole, answers=(*whole.answers, cut)))
    assert cell.throughput == pytest.approx(STREAMS / STEP_S + 2 / 3.0)
    assert cell.in_flight == pytest.approx(STREAMS + 0.5 / 3.0)


def test_uncounted_chunks_weigh_their_share_of_usage_also_in_an_answer_cut_off() -> None:
    whole = record_steady_loop()
    for answer in whole.answers:  # two tokens per chunk, and only usage shows it
        answer.times, answer.counts, answer.is_counted = answer.times[1::2], [1, 2, 3, 4, 5], False
    cut = StreamedAnswer(started_at=4.5, status=200, times=[4.7], counts=[1], is_counted=False)
    cell = sum_up(replace(whole, answers=(*whole.answers, cut)))
    assert cell.throughput == pytest.approx(STREAMS / STEP_S + 2 / 3.0)
    assert (cell.tokens_per_chunk, cell.counted_by) == (2.0, "chunks")


def test_a_pause_shows_as_less_than_full() -> None:
    def delay(at: float) -> float:
        return at + (1.5 if at > 3 else 0)

    whole = record_steady_loop()
    late = tuple(make_answer(delay(answer.started_at), list(map(delay, answer.times))) for answer in whole.answers)
    cell = sum_up(replace(whole, answers=late))
    assert (cell.fill or 1) < 0.9
    assert cell.evenness == 0.0


def test_cached_prompt_tokens_are_a_share_of_those_of_answers_that_report_them() -> None:
    whole = record_steady_loop()
    assert sum_up(whole).cached is None
    for answer in whole.answers[:4]:
        answer.cached_tokens = 3  # of 7
    assert sum_up(whole).cached == pytest.approx(3 / 7)


def test_the_clients_own_load_is_that_of_the_window_and_of_its_busiest_process() -> None:
    other = tuple(replace(tick, cpu_s=9 * tick.cpu_s, process=1) for tick in TICKS)
    cell = sum_up(replace(record_steady_loop(), ticks=(*TICKS, *other)))
    assert cell.client_cpu == pytest.approx(0.9)
    assert (cell.loop_lag_p99_s, cell.loop_lag_max_s) == (0.001, 0.2)


def test_goodput_counts_answers_that_ended_in_the_window_and_kept_the_limits() -> None:
    quick = [make_answer(at, [at + 0.2, at + 0.3]) for at in (0.0, 1.0, 2.0, 3.0)]
    recording = Recording(1.0, 3.0, (*quick, make_answer(1.5, [2.2, 2.4])), ())
    pair = Pair(1, low_first=True)
    assert summarise(recording, "triton", pair, 2, Slo(ttft_s=0.3)).goodput == pytest.approx(2 / 2.0)  # at 1 and 2
    assert summarise(recording, "triton", pair, 2).goodput is None


def test_phase_order_distinguishes_lockstep_from_spread() -> None:
    assert find_phase_order([5.0] * 16, 2.0) == pytest.approx(1.0)
    assert find_phase_order([5.0 + 2.0 * number for number in range(16)], 2.0) == pytest.approx(1.0)
    assert find_phase_order([5.0 + 2.0 * number / 16 for number in range(16)], 2.0) == pytest.approx(0.0, abs=1e-9)
