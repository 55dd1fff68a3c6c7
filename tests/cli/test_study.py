"""The study of policies on simulated nodes, on its smallest cases."""

import argparse

import pytest

from tests.routing.study import ALWAYS, ARMS, EARLIER, RATES, TRUTHS, USUAL, Case, describe, list_cases, run


def list_all(**given: object) -> list[Case]:
    usual = {"truths": list(USUAL), "pairs": [*EARLIER, *ALWAYS], "rates": list(RATES), "seeds": 2, "seconds": 50.0}
    return list(list_cases(argparse.Namespace(**{**usual, **given})))


def test_every_truth_has_every_pair_that_it_has_numbers_of() -> None:
    cases = list_all()
    assert len(cases) == len(set(cases)) == 2 * 10 * (3 * len(EARLIER) + 2 * len(ALWAYS))
    assert not any(case.pair in ALWAYS for case in cases if case.truth == "earlier")


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
