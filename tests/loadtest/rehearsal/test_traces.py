"""Traces by name: their rates and their lengths."""

from collections import Counter

import pytest

from loadtest.rehearsal.traces import HIGH, LOW, TRACES, Pair, TraceRequest, Variant, make_trace

PAIR = Pair(answer_s=0.5, answers_per_s=1000, prompt_tokens=80, tokens=128)


def trace_of(text: str, seed: int) -> tuple[TraceRequest, ...]:
    variant = Variant.parse(text)
    assert variant is not None
    return make_trace(variant, PAIR, seed)


def count(name: str, start: float, end: float, seed: int = 1) -> float:
    """Arrivals a second between two parts of the trace, over the most that the pair completes."""
    seconds = TRACES[name].length * PAIR.answer_s
    trace = trace_of(name, seed)
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
        counts = Counter(int(200 * request.at / seconds) for request in trace_of("bursts", seed))
        rates = [200 * counts[part] / seconds / 1000 for part in range(200)]
        assert sum(0.15 < rate < 0.5 for rate in rates) < 40  # those in which a turn ends
        busy += sum(rate > 0.4 for rate in rates)
    assert 0.2 < busy / 2000 < 0.46


def test_one_seed_gives_one_trace() -> None:
    assert trace_of("day", 7) == trace_of("day", 7)
    assert trace_of("day", 7) != trace_of("day", 8)
    assert trace_of("day", 7)[-1].at <= 100


def test_a_variant_has_the_same_arrivals_and_other_requests() -> None:
    plain, mixed = trace_of("step", 3), trace_of("step only_high=0.2 long=0.05 long_tokens=4000", 3)
    assert [request.at for request in plain] == [request.at for request in mixed]
    assert {(request.prompt_tokens, request.only) for request in plain} == {(80, "")}
    assert sum(request.only == "high" for request in mixed) / len(mixed) == pytest.approx(0.2, abs=0.02)
    assert sum(request.prompt_tokens == 4000 for request in mixed) / len(mixed) == pytest.approx(0.05, abs=0.01)
    assert trace_of("step length=4", 3)[-1].at <= 2 < plain[-1].at


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step long", "long: Input should be a valid number"),
        ("step long=2", "long: Input should be less than or equal to 1"),
        ("step length=0", "length: Input should be greater than 0"),
        ("step height=3", r"height: .* \(keys: length, only_high, long, long_tokens\)"),
    ],
)
def test_a_bad_key_of_a_variant_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Variant.parse(text)


def test_any_other_name_is_no_variant() -> None:
    assert [Variant.parse(text) for text in ("", "steps", "step.jsonl")] == [None] * 3
