"""From compared items to verdicts, exit codes and words."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engines.accuracy.comparison import Comparison, Outcome, Surprisal
from engines.accuracy.divergence import Agreement, Divergence
from engines.accuracy.findings import DIVERGENCE, SCORE, SURPRISAL, Allowed, Finding, Findings, Verdict, find
from engines.accuracy.intervals import Interval
from engines.accuracy.report import list_sections
from engines.accuracy.result import EXIT_CODES, Result, Subject, Tasks
from engines.sections import render_markdown


def make(
    a: bool, b: bool, task: str = "t", nats: tuple[float, float] | None = None, kl: float | None = None
) -> Comparison:
    first, second = (
        Outcome("x", is_right, 4, None if nats is None else Surprisal(value, 4))
        for is_right, value in ((a, nats[0] if nats else 0), (b, nats[1] if nats else 0))
    )
    apart = None if kl is None else Divergence(4, kl, kl / 2, kl, 0.01)
    return Comparison("i", task, first, second, Agreement(4, 4, 4), apart, apart and replace(apart, kl=0.0))


def with_floor(kl: float, floor: float) -> Comparison:
    return replace(make(True, True, "t", None, kl), floor=Divergence(4, floor, 0.0, 0.0, 0.0))


def verdicts(findings: Findings) -> dict[tuple[str, str | None], Verdict]:
    return {(one.measure, one.task): one.verdict for one in findings.judged}


def conclude(compared: Sequence[Comparison], allowed: Allowed | None = None, must_rule_out: bool = False) -> Result:
    findings = find(compared, allowed or Allowed(), 0.95)
    side = Subject("http://x", "m", "", None)
    return Result(
        "accuracy-1", "2026-01-01T00:00:00Z", 1.0, side, side, Tasks("f", "0" * 64, len(compared)), 0.95, must_rule_out,
        None, findings,
    )  # fmt: skip


def render(result: Result) -> str:
    return render_markdown(list_sections(result))


@pytest.mark.parametrize(
    ("low", "high", "allowed", "verdict"),
    [
        (0.5, 2.0, 0.0, "loss"),
        (0.5, 2.0, 1.0, "none found"),
        (0.5, 2.0, 2.0, "ruled out"),
        (-1.0, 1.0, 0.0, "none found"),
        (-2.0, -1.0, 0.0, "ruled out"),
        (0.5, 2.0, None, "not judged"),
    ],
)
def test_a_loss_is_an_interval_wholly_beyond_what_is_allowed(
    low: float, high: float, allowed: float | None, verdict: Verdict
) -> None:
    assert Finding(SCORE, None, "points", 9, Interval(0.0, low, high, 0.95), allowed).verdict == verdict


def test_what_float32_does_not_resolve_is_no_loss() -> None:
    noise = Interval(2e-6, 1e-6, 3e-6, 0.95)
    assert Finding(SURPRISAL, None, "nats per token", 9, noise, 0.0).verdict == "ruled out"


def test_items_that_one_alone_got_right_are_a_loss_of_score() -> None:
    result = conclude([make(True, True)] * 80 + [make(True, False)] * 20)
    (finding,) = result.findings.judged
    assert finding.interval.point == pytest.approx(20.0)
    assert finding.verdict == "loss"
    (score,) = result.findings.scores
    assert (score.a_right, score.b_right, score.lost, score.gained, score.p < 1e-4) == (100, 80, 20, 0, True)
    assert EXIT_CODES[result.verdict] == 1


def test_a_task_s_loss_is_found_where_all_together_hide_it() -> None:
    compared = [make(True, True, "big")] * 3000 + [make(True, False, "small")] * 8 + [make(False, True, "big")] * 8
    found = verdicts(find(compared, Allowed(), 0.95))
    assert found == {(SCORE, None): "none found", (SCORE, "big"): "ruled out", (SCORE, "small"): "loss"}


def test_all_that_is_judged_shares_the_risk_of_a_false_alarm() -> None:
    compared = [make(True, True, task, (1.0, 1.1 + 0.01 * n), 0.1 + 0.01 * n) for task in "ab" for n in range(5)]
    found = find(compared, Allowed(), 0.95)
    assert [one.interval.confidence for one in found.judged] == pytest.approx([1 - 0.05 / 4] * 5)
    judged = find(compared, Allowed(divergence=0.0), 0.95)
    assert [one.interval.confidence for one in judged.judged] == pytest.approx([1 - 0.05 / 5] * 5)


def test_right_answers_found_less_likely_are_a_loss_and_what_is_allowed_counts_per_token() -> None:
    compared = [make(True, True, "t", (1.0, 1.2 + 0.01 * (n % 3))) for n in range(30)]
    assert verdicts(find(compared, Allowed(), 0.95))[SURPRISAL, None] == "loss"
    assert verdicts(find(compared, Allowed(surprisal=0.06), 0.95))[SURPRISAL, None] == "ruled out"


def test_a_divergence_that_is_a_s_own_is_none() -> None:
    """Kernels that differ between writing and reading make one."""
    apart = [0.1 + 0.001 * (n % 7) for n in range(30)]
    noise = [with_floor(kl, kl + 0.001 * (-1) ** n) for n, kl in enumerate(apart)]
    assert verdicts(find(noise, Allowed(divergence=0.0), 0.95))[DIVERGENCE, None] == "none found"
    more = [with_floor(kl, kl / 2) for kl in apart]
    assert verdicts(find(more, Allowed(divergence=0.0), 0.95))[DIVERGENCE, None] == "loss"


def test_divergence_is_reported_and_judged_only_on_request() -> None:
    compared = [make(True, True, "t", None, 0.1 + 0.001 * (n % 7)) for n in range(30)]
    assert verdicts(find(compared, Allowed(), 0.95))[DIVERGENCE, None] == "not judged"
    assert verdicts(find(compared, Allowed(divergence=0.02), 0.95))[DIVERGENCE, None] == "loss"


@pytest.mark.parametrize(
    ("points", "must_rule_out", "verdict", "code"),
    [(0.0, False, "none found", 0), (0.0, True, "undecided", 2), (10.0, True, "ruled out", 0)],
)
def test_what_is_not_ruled_out_is_undecided_where_that_is_asked_for(
    points: float, must_rule_out: bool, verdict: str, code: int
) -> None:
    result = conclude([make(True, True)] * 60, Allowed(points), must_rule_out)
    assert (result.verdict, EXIT_CODES[result.verdict]) == (verdict, code)


def test_a_report_names_what_was_not_measured_and_how_wide_it_left_things_open() -> None:
    report = render(conclude([make(True, True)] * 60))
    assert "Not ruled out by 60 items: score up to +6.02 points." in report
    assert "Not measured: surprisal and divergence (fewer than two items have it)." in report
    assert "60 of 60 are the same token for token" in report
