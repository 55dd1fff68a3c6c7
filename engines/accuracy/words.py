"""A result in words: sentences and rows that report.md and the terminal share. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from engines.accuracy.cost import Saving
from engines.accuracy.findings import DIVERGENCE, SCORE, SURPRISAL, Distance, Finding, Score, Tokens
from engines.accuracy.result import Result, Subject

SCORE_HEADINGS = ("task", "items", "A %", "B %", "lost", "gained", "p", "points lost")
FINDING_HEADINGS = ("what B loses", "interval", "allowed", "verdict")
NAMES = {SCORE: "score", SURPRISAL: "surprisal", DIVERGENCE: "divergence"}


@dataclass(frozen=True, slots=True)
class Figure:
    """How many digits a measure is told with."""

    digits: int

    def show(self, value: float) -> str:
        return f"{value:+z.{self.digits}f}"


FIGURES = {SCORE: Figure(2), SURPRISAL: Figure(5), DIVERGENCE: Figure(5)}


def describe_verdict(result: Result) -> str:
    losses = result.findings.losses
    if result.verdict == "loss":
        return "B loses more than allowed: " + "; ".join(map(describe_finding, losses)) + "."
    if result.verdict == "ruled out":
        return "No loss beyond what is allowed: more than that is ruled out."
    lead = "Undecided: no loss" if result.verdict == "undecided" else "No loss"
    left = "; ".join(_describe_left(result))
    return f"{lead} beyond what is allowed was found. Not ruled out by {result.tasks.items} items: {left}."


def _describe_left(result: Result) -> Iterator[str]:
    open_ones = [one for one in result.findings.judged if one.verdict == "none found"]
    for one in (one for one in open_ones if one.task is None):
        yield f"{one.measure} up to {_show_high(one)}"
    of_tasks = [one for one in open_ones if one.task is not None]
    if of_tasks:
        widest = max(of_tasks, key=lambda one: one.interval.high)
        yield f"score of one task up to {_show_high(widest)} ({widest.task})"


def _show_high(finding: Finding) -> str:
    return f"{FIGURES[finding.measure].show(finding.interval.high)} {finding.unit}"


def describe_finding(finding: Finding) -> str:
    return f"{_name(finding)} {_show_interval(finding)} {finding.unit}"


def _name(finding: Finding) -> str:
    return f"{finding.measure} of {finding.task}" if finding.task else finding.measure


def score_rows(result: Result) -> Iterator[tuple[str, ...]]:
    """A row for each task; what they are together is a finding."""
    judged = {one.task: one for one in result.findings.judged if one.measure == SCORE}
    for score in result.findings.scores:
        finding = judged.get(score.task, judged[None])
        yield (*_score_cells(score), _show_interval(finding))


def _score_cells(score: Score) -> tuple[str, ...]:
    counts = (score.items, f"{score.a_share:.1f}", f"{score.b_share:.1f}", score.lost, score.gained)
    return score.task, *map(str, counts), f"{score.p:.4f}"


def finding_rows(result: Result) -> Iterator[tuple[str, ...]]:
    for one in result.findings.judged:
        if one.task is None:
            allowed = "" if one.allowed is None else f"{one.allowed:g}"
            yield f"{NAMES[one.measure]}, {one.unit}", _show_interval(one), allowed, one.verdict


def _show_interval(finding: Finding) -> str:
    show, interval = FIGURES[finding.measure].show, finding.interval
    return f"{show(interval.point)} [{show(interval.low)}, {show(interval.high)}]"


def notes(result: Result) -> Iterator[str]:
    """What else was measured, and what could not be."""
    findings = result.findings
    if findings.tokens:
        yield _describe_tokens(findings.tokens)
    else:
        yield "Token agreement was not measured: it takes endpoints that tell token ids (return_token_ids)."
    if findings.distance:
        yield _describe_distance(findings.distance)
    yield from _describe_lack(result)
    yield from _describe_cost(result)
    count, level = len(findings.judged), 100 * findings.judged[0].interval.confidence
    together = f"those that are judged hold together at {100 * result.confidence:.4g} %"
    yield f"{count} intervals at {level:.4g} % each; {together}."


def _describe_tokens(tokens: Tokens) -> str:
    median = tokens.median_divergence
    where = "" if median is None else f"; half of those that differ do so by token {median + 1}"
    return (
        f"Greedy answers: {tokens.same_answers} of {tokens.answers} are the same token for token; "
        f"{100 * tokens.equal:.2f} % of tokens are equal place by place, {100 * tokens.prefix:.2f} % come before the "
        f"first that differs{where}."
    )


def _describe_distance(distance: Distance) -> str:
    floor = distance.floor
    own = "" if floor is None else f", of which A's from itself, as it wrote and as it read, is {floor:.2g}"
    return (
        f"Next tokens along A's answers: KL(A || B) is at least {distance.kl:.2g} nats per token{own}; the total "
        f"variation distance is {distance.tv_low:.2g} to {distance.tv_high:.2g}. {distance.unseen:.2g} of A's mass was "
        "beyond the likeliest tokens told."
    )


def _describe_lack(result: Result) -> Iterator[str]:
    measured = {finding.measure for finding in result.findings.judged}
    lacking = [NAMES[measure] for measure in (SURPRISAL, DIVERGENCE) if measure not in measured]
    if lacking:
        reasons = [side.refusal for side in (result.a, result.b) if side.refusal]
        why = "; ".join(reasons) or "fewer than two items tell it"
        yield f"Not measured: {' and '.join(lacking)} ({why})."


def _describe_cost(result: Result) -> Iterator[str]:
    for name, side in (("A", result.a), ("B", result.b)):
        if side.cost:
            yield f"{name} costs {_describe_side(side)}."
    if result.saving:
        yield _describe_saving(result.saving)


def _describe_saving(saving: Saving) -> str:
    if saving.per_million <= 0:
        return f"B costs {-saving.per_million:.4g} more than A on a million tokens."
    each = "no score was lost on these items" if saving.per_point is None else f"{saving.per_point:.4g} a point lost"
    least = (
        "" if saving.at_least is None else f", {saving.at_least:.4g} a point if it is as many as the interval allows"
    )
    return f"B saves {saving.per_million:.4g} on a million tokens: {each}{least}."


def _describe_side(side: Subject) -> str:
    assert side.cost is not None
    right = side.cost.per_thousand_right
    each = "" if right is None else f", {right:.4g} per thousand right answers as it wrote them"
    return f"{side.cost.per_million:.4g} per million generated tokens{each}"
