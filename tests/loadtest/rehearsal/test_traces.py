"""Traces: their rates, their lengths, and files of them."""

from collections import Counter
from pathlib import Path

import pytest

from loadtest.rehearsal.traces import HIGH, LOW, TRACES, Pair, TraceRequest, list_lines, make_trace, read_trace

PAIR = Pair(answer_s=0.5, answers_per_s=1000)


def count(name: str, start: float, end: float, seed: int = 1) -> float:
    """Arrivals a second between two parts of the trace, over the most that the pair completes."""
    seconds = TRACES[name].length * PAIR.answer_s
    trace = make_trace(name, PAIR, 80, 128, seed)
    return sum(start <= request.at / seconds < end for request in trace) / ((end - start) * seconds) / 1000


def test_a_ramp_rises_and_falls() -> None:
    assert count("ramp", 0.0, 0.05) == pytest.approx(LOW + 0.05 * (HIGH - LOW), abs=0.05)
    assert count("ramp", 0.475, 0.525) == pytest.approx(HIGH, abs=0.06)
    assert count("ramp", 0.95, 1.0) == pytest.approx(LOW + 0.05 * (HIGH - LOW), abs=0.05)


def test_a_step_is_high_in_its_middle_third() -> None:
    rates = [count("step", *part) for part in ((0, 0.33), (0.34, 0.66), (0.67, 1))]
    assert rates == pytest.approx([LOW, HIGH, LOW], abs=0.03)


def test_bursts_are_high_for_about_a_third_and_nothing_between() -> None:
    seconds, busy = TRACES["bursts"].length * PAIR.answer_s, 0
    for seed in range(10):
        counts = Counter(int(200 * request.at / seconds) for request in make_trace("bursts", PAIR, 80, 128, seed))
        rates = [200 * counts[part] / seconds / 1000 for part in range(200)]
        assert sum(0.15 < rate < 0.5 for rate in rates) < 40  # those in which a turn ends
        busy += sum(rate > 0.4 for rate in rates)
    assert 0.2 < busy / 2000 < 0.46


def test_one_seed_gives_one_trace() -> None:
    assert make_trace("day", PAIR, 80, 128, 7) == make_trace("day", PAIR, 80, 128, 7)
    assert make_trace("day", PAIR, 80, 128, 7) != make_trace("day", PAIR, 80, 128, 8)
    assert make_trace("day", PAIR, 80, 128, 7)[-1].at <= 100


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    trace, file = make_trace("ramp", PAIR, 80, 128, 1)[:50], tmp_path / "trace.jsonl"
    file.write_text("\n".join(list_lines(trace)))
    assert [request.tokens for request in read_trace(file)] == [128] * 50
    assert [request.at for request in read_trace(file)] == pytest.approx([request.at for request in trace], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no request"),
        ("nonsense", "line 1"),
        ('{"at": 1, "tokens": 3}', "line 1: KeyError 'prompt_tokens'"),
        ('{"at": -1, "prompt_tokens": 1, "tokens": 3}', "at must be a number of seconds"),
        ('{"at": 1, "prompt_tokens": 1, "tokens": 0}', "tokens must be whole numbers"),
        ('{"at": 1, "prompt_tokens": 1, "tokens": 1}\n{"at": 0, "prompt_tokens": 1, "tokens": 1}', "sorted by at"),
        ("[]", "line 1: TypeError"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=message):
        read_trace(file)


def test_a_request_is_a_value() -> None:
    assert TraceRequest(1.0, 2, 3) == TraceRequest(1.0, 2, 3)
