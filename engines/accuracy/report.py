"""A result as sections of sentences and tables, for report.md and the terminal. Pure."""

from collections.abc import Iterator

from engines.accuracy.cost import Saving
from engines.accuracy.findings import DIVERGENCE, SCORE, SURPRISAL, Distance, Finding, Score, Tokens
from engines.accuracy.result import Result, Subject
from engines.sections import Section

SCORE_HEADINGS = ("task", "items", "A %", "B %", "lost", "gained", "p", "points lost")
FINDING_HEADINGS = ("what B loses", "interval", "allowed", "verdict")
DIGITS = {SCORE: 2, SURPRISAL: 5, DIVERGENCE: 5}


def list_sections(result: Result) -> list[Section]:
    return [
        Section(f"{result.run}: {result.verdict}", list(_introduce(result))),
        Section("What B loses", [], [FINDING_HEADINGS, *_list_findings(result)]),
        Section("Tasks", [], [SCORE_HEADINGS, *_list_scores(result)]),
        Section("Notes", list(describe_rest(result))),
        Section("Verdict", [describe_verdict(result)]),
    ]


def _introduce(result: Result) -> Iterator[str]:
    yield f"A: {result.a.place}, model {result.a.model}"
    yield f"B: {result.b.place}, model {result.b.model}"
    tasks = result.tasks
    when = f"{result.started_at}, {result.duration_s:.0f} s"
    yield f"{tasks.items} items of {tasks.source} (sha256 {tasks.sha256[:16]}); {when}"


def describe_verdict(result: Result) -> str:
    if result.verdict == "loss":
        return "B loses more than allowed: " + "; ".join(map(_describe_finding, result.findings.losses)) + "."
    if result.verdict == "ruled out":
        return "No loss beyond what is allowed: more than that is ruled out."
    lead = "Undecided: no loss" if result.verdict == "undecided" else "No loss"
    possible = "; ".join(_describe_possible(result))
    return f"{lead} beyond what is allowed was found. Not ruled out by {result.tasks.items} items: {possible}."


def _describe_possible(result: Result) -> Iterator[str]:
    undecided = [one for one in result.findings.judged if one.verdict == "none found"]
    yield from (f"{one.measure} up to {_show_high(one)}" for one in undecided if one.task is None)
    of_tasks = [one for one in undecided if one.task is not None]
    if of_tasks:
        widest = max(of_tasks, key=lambda one: one.interval.high)
        yield f"score of one task up to {_show_high(widest)} ({widest.task})"


def _show(measure: str, value: float) -> str:
    return f"{value:+z.{DIGITS[measure]}f}"


def _show_high(finding: Finding) -> str:
    return f"{_show(finding.measure, finding.interval.high)} {finding.unit}"


def _show_interval(finding: Finding) -> str:
    point, low, high = (_show(finding.measure, getattr(finding.interval, end)) for end in ("point", "low", "high"))
    return f"{point} [{low}, {high}]"


def _describe_finding(finding: Finding) -> str:
    name = f"{finding.measure} of {finding.task}" if finding.task else finding.measure
    return f"{name} {_show_interval(finding)} {finding.unit}"


def _list_scores(result: Result) -> Iterator[tuple[str, ...]]:
    """A row for each task; all tasks together are among the findings."""
    judged = {one.task: one for one in result.findings.judged if one.measure == SCORE}
    for score in result.findings.scores:
        yield (*_list_cells(score), _show_interval(judged.get(score.task, judged[None])))


def _list_cells(score: Score) -> tuple[str, ...]:
    a, b = (f"{100 * right / score.items:.1f}" for right in (score.a_right, score.b_right))
    return score.task, str(score.items), a, b, str(score.lost), str(score.gained), f"{score.p:.4f}"


def _list_findings(result: Result) -> Iterator[tuple[str, ...]]:
    for one in result.findings.judged:
        if one.task is None:
            allowed = "" if one.allowed is None else f"{one.allowed:g}"
            yield f"{one.measure}, {one.unit}", _show_interval(one), allowed, one.verdict


def describe_rest(result: Result) -> Iterator[str]:
    """The measures without a verdict, and those that could not be taken."""
    findings = result.findings
    if findings.tokens:
        yield _describe_tokens(findings.tokens)
    else:
        yield "Token agreement was not measured: an endpoint returns no token ids (return_token_ids)."
    if findings.distance:
        yield _describe_distance(findings.distance)
    yield from _describe_missing(result)
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
        "beyond the likeliest tokens that it returned."
    )


def _describe_missing(result: Result) -> Iterator[str]:
    measured = {finding.measure for finding in result.findings.judged}
    missing = [measure for measure in (SURPRISAL, DIVERGENCE) if measure not in measured]
    if missing:
        reasons = [side.refusal for side in (result.a, result.b) if side.refusal]
        why = "; ".join(reasons) or "fewer than two items have it"
        yield f"Not measured: {' and '.join(missing)} ({why})."


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
    bound = (
        "" if saving.at_least is None else f", {saving.at_least:.4g} a point if it is as many as the interval allows"
    )
    return f"B saves {saving.per_million:.4g} on a million tokens: {each}{bound}."


def _describe_side(side: Subject) -> str:
    assert side.cost is not None
    right = side.cost.per_thousand_right
    each = "" if right is None else f", {right:.4g} per thousand right answers as it wrote them"
    return f"{side.cost.per_million:.4g} per million generated tokens{each}"
