"""The study of policies on simulated nodes, on its smallest cases."""

import argparse

import pytest

from tests.routing.study import (
    ALWAYS,
    ARMS,
    EARLIER,
    MEASURED,
    PAIRS,
    RATES,
    TRACES,
    TRUTHS,
    USUAL,
    WAVES,
    Case,
    describe,
    list_cases,
    run,
)


def list_all(**given: object) -> list[Case]:
    usual = {"truths": list(USUAL), "pairs": list(PAIRS), "traces": list(TRACES), "rates": list(RATES), "seeds": 2}
    return list(list_cases(argparse.Namespace(**{**usual, "seconds": 50.0, **given})))


def test_every_truth_has_every_pair_that_it_has_numbers_of() -> None:
    cases = list_all()
    assert len(cases) == len(set(cases)) == 2 * 10 * (3 * len(EARLIER) + 2 * len(ALWAYS))
    assert {case.pair for case in cases if case.truth == "earlier"} == set(EARLIER)


@pytest.mark.parametrize("truth", TRUTHS)
def test_a_case_serves_all_of_its_trace_in_each_way(truth: str) -> None:
    row = run(Case(truth, "spec-plain", "mooncake", 0.6, 1, 20.0), ("curve",))
    results = row[1]
    assert set(results) == {"low", "high", "curve"}
    assert results["low"].mean_s < results["high"].mean_s  # speculation is the faster at low load, in any truth
    assert results["curve"].mean_s < 1.05 * results["low"].mean_s
    *_, line = describe([row], ("curve",))
    assert line.startswith(f"| {truth} | spec-plain | curve | 1.0")


def test_a_truth_whose_numbers_are_off_is_served_by_the_same_trace() -> None:
    case = Case("physics", "spec-plain", "mooncake", 0.6, 1, 20.0)
    (_, right), (_, off) = run(case, ("curve",)), run(case, ("off", "threshold"))
    assert right["low"] == off["low"]
    assert set(off) <= {"low", "high", *ARMS}


def test_a_peak_as_brief_as_the_one_before_moves_nothing() -> None:
    """Until the time counted in which an engine would have been the better one, this cost 1.087."""
    _, results = run(Case("physics", MEASURED, WAVES, 1.0, 6), ("curve",))
    assert results["low"].mean_s < results["high"].mean_s
    assert results["curve"] == results["low"]
