"""What a rehearsal found: one row for each trace and arm, as a table, as JSON, and as a page with pictures. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.decide.regret import Regret, Rule, Verdict, find_regret
from loadtest.rehearsal.pictures import draw_trace
from loadtest.rehearsal.rehearse import Serving
from loadtest.report.chart import render_template

PAGE = "rehearsal.html"  # of a rehearsal's folder
# What is compared, by a policy's objective: in words, and as a serving's times.
OBJECTIVES: Mapping[str, tuple[str, Callable[[Serving], Sequence[float]]]] = {
    "answer": ("an answer", lambda serving: serving.e2e_s),
    "ttft": ("a first token", lambda serving: serving.ttft_s),
}
HEADINGS = ("trace", "arm", "repeats", "regret", "over best", "verdict", "mean", "p99", "sent late", "changes", "moves")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm on one trace, over all repeats. `lag_share`: the client's mean lateness as a part of the mean answer.

    `regret`: of the objective's times. `verdict`: None for an engine alone.
    """

    trace: str
    arm: str
    repeats: int
    verdict: Verdict | None
    regret: Regret
    lag_share: float
    switches: float
    moves: float


def read_objective(policy: Mapping[str, object] | None) -> str:
    """Returns what a policy keeps short: the time of whole answers, unless it has another objective."""
    objective = (policy or {}).get("objective")
    return objective if isinstance(objective, str) and objective in OBJECTIVES else "answer"


def find_outcomes(servings: Sequence[Serving], singles: Sequence[str], objective: str, rule: Rule) -> Sequence[Outcome]:
    """Finds the outcome of each arm on each trace. `singles`: the arms of one engine alone."""
    return [
        _find_outcome(arm, own, singles, objective, rule)
        for trace in dict.fromkeys(serving.trace for serving in servings)
        for own in [[serving for serving in servings if serving.trace == trace]]
        for arm in dict.fromkeys(serving.arm for serving in own)
    ]


def is_decided(servings: Sequence[Serving], singles: Sequence[str], objective: str, rule: Rule) -> bool:
    """Whether the verdict on every routed arm is known."""
    return all(outcome.verdict != "not decided" for outcome in find_outcomes(servings, singles, objective, rule))


def _find_outcome(arm: str, servings: Sequence[Serving], singles: Sequence[str], objective: str, rule: Rule) -> Outcome:
    names, (_, find_times) = dict.fromkeys(serving.arm for serving in servings), OBJECTIVES[objective]
    times = {name: [find_times(serving) for serving in servings if serving.arm == name] for name in names}
    own = [serving for serving in servings if serving.arm == arm]
    regret = find_regret(arm, times, singles, rule.most)
    lag_s, e2e_s = (sum(map(sum, all_s)) for all_s in zip(*((each.lag_s, each.e2e_s) for each in own), strict=True))
    return Outcome(
        trace=own[0].trace,
        arm=arm,
        repeats=len(own),
        verdict=None if arm in singles else rule.judge(regret.over_best),
        regret=regret,
        lag_share=lag_s / e2e_s,
        switches=sum(serving.switches for serving in own) / len(own),
        moves=sum(serving.moves for serving in own) / len(own),
    )


def list_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """Yields the texts of HEADINGS for each outcome."""
    for outcome in outcomes:
        regret = outcome.regret
        yield (
            outcome.trace,
            outcome.arm,
            str(outcome.repeats),
            str(regret.regret),
            str(regret.over_best),
            outcome.verdict or "",
            f"{regret.mean_s:.3g} s",
            f"{regret.p99_s:.3g} s",
            f"{outcome.lag_share:.1%}",
            f"{outcome.switches:.1f}",
            f"{outcome.moves:.0f}",
        )


def render_page(
    name: str, backends: tuple[str, str], outcomes: Sequence[Outcome], servings: Sequence[Serving], objective: str
) -> str:
    """Renders rehearsal.html: the table, and for each trace pictures of it over its time."""
    traces = dict.fromkeys(serving.trace for serving in servings)
    return render_template(
        "rehearsal.html.jinja",
        name=name,
        backends=backends,
        headings=HEADINGS,
        what=OBJECTIVES[objective][0],
        rows=list(list_rows(outcomes)),
        traces=[
            draw_trace(trace, backends, [each for each in servings if each.trace == trace], *OBJECTIVES[objective])
            for trace in traces
        ],
    )
