from dataclasses import replace

import pytest

from loadtest.report.text import describe, describe_threshold, show_ms, show_rate
from loadtest.results.curves import THROUGHPUT
from tests.loadtest.samples import CROSSING, make_result


@pytest.mark.parametrize(
    ("ratios", "verdict", "threshold"),
    [
        (
            CROSSING,
            "triton is better below 39.9 in flight, vllm above (95 % sure: 39.7 to 40)",
            "up 47, down 33 (outside the 95 % set, and 15% or more from the crossing), not applied",
        ),
        ({1: 0.8, 2: 1.2}, "vllm is better below 1.5 in flight, triton above", "swap its low (triton) and high (vllm)"),
        ({1: 1.2, 2: 1.01}, "triton is at least as good at every level up to 2", "for triton alone, set up above any"),
        ({1: 0.9, 4: 0.8}, "vllm is at least as good at every level up to 4", "for vllm alone"),
        ({1: 1.0, 2: 1.01}, "no difference beyond the tie band at any level up to 2", "either backend serves as well"),
        (
            {1: 1.2, 2: 0.8, 4: 1.2},
            "the backends change places more than once: near 1.4 and 2.9 in flight",
            "no single threshold is right",
        ),
    ],
)
def test_a_sentence_says_who_is_better_and_one_what_becomes_of_the_threshold(
    ratios: dict[int, float], verdict: str, threshold: str
) -> None:
    result = make_result(ratios)
    assert describe(THROUGHPUT, result).startswith(verdict)
    assert threshold in describe_threshold(result)


def test_an_applied_threshold_names_the_policy_version() -> None:
    assert "applied as policy version 7" in describe_threshold(
        replace(make_result(CROSSING), applied={"version": 7, "up": 47})
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "n/a"), (0.0146, "14.6 ms"), (0.00021, "0.21 ms"), (0.1234, "123 ms"), (2.5, "2.50 s"), (0.9999, "1.00 s")],
)
def test_times_are_shown_with_three_digits(seconds: float | None, shown: str) -> None:
    assert show_ms(seconds) == shown


@pytest.mark.parametrize(("rate", "shown"), [(12.34, "12.3"), (999.94, "999.9"), (12345.6, "12,346")])
def test_rates_are_shown_without_noise(rate: float, shown: str) -> None:
    assert show_rate(rate) == shown
