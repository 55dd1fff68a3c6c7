"""What a rehearsal found: one row for each trace and arm, as a table, as JSON, and as a page with pictures. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.decide.regret import Ratio, Regret, find_regret
from loadtest.rehearsal.rehearse import Sample, Serving, name_alone
from loadtest.report.chart import Axis, Chart, Line, Point, axis_from_zero, render_template

PAGE = "rehearsal.html"  # of a rehearsal's folder
# What is compared, by a policy's objective: in words, and as a serving's times.
OBJECTIVES: Mapping[str, tuple[str, Callable[[Serving], Sequence[float]]]] = {
    "answer": ("an answer", lambda serving: serving.e2e_s),
    "ttft": ("a first token", lambda serving: serving.ttft_s),
}
HEADINGS = ("trace", "arm", "regret", "over best", "mean", "p99", "sent late", "changes", "moves")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm on one trace, over all repeats. `lag_share`: the client's mean lateness as a part of the mean answer.

    `regret`: of the objective's times.
    """

    trace: str
    arm: str
    regret: Regret
    lag_share: float
    switches: float
    moves: float

    @property
    def is_worse(self) -> bool:
        """Whether the mean is surely longer than on the better engine alone; without an interval: longer."""
        over_best = self.regret.over_best
        return (over_best.value if over_best.low is None else over_best.low) > 1.0


def read_objective(policy: Mapping[str, object] | None) -> str:
    """Returns what a policy keeps short: the time of whole answers, unless it has another objective."""
    objective = (policy or {}).get("objective")
    return objective if isinstance(objective, str) and objective in OBJECTIVES else "answer"


def find_outcomes(servings: Sequence[Serving], singles: Sequence[str], objective: str) -> Sequence[Outcome]:
    """Finds the outcome of each arm on each trace. `singles`: the arms of one engine alone."""
    return [
        _find_outcome(arm, own, singles, objective)
        for trace in dict.fromkeys(serving.trace for serving in servings)
        for own in [[serving for serving in servings if serving.trace == trace]]
        for arm in dict.fromkeys(serving.arm for serving in own)
    ]


def _find_outcome(arm: str, servings: Sequence[Serving], singles: Sequence[str], objective: str) -> Outcome:
    names, (_, find_times) = dict.fromkeys(serving.arm for serving in servings), OBJECTIVES[objective]
    times = {name: [find_times(serving) for serving in servings if serving.arm == name] for name in names}
    own = [serving for serving in servings if serving.arm == arm]
    regret = find_regret(arm, times, singles)
    lag_s, e2e_s = (sum(map(sum, all_s)) for all_s in zip(*((each.lag_s, each.e2e_s) for each in own), strict=True))
    return Outcome(
        trace=own[0].trace,
        arm=arm,
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
            _show(regret.regret),
            _show(regret.over_best),
            f"{regret.mean_s:.3g} s",
            f"{regret.p99_s:.3g} s",
            f"{outcome.lag_share:.1%}",
            f"{outcome.switches:.1f}",
            f"{outcome.moves:.0f}",
        )


def render_page(
    name: str, backends: tuple[str, str], outcomes: Sequence[Outcome], servings: Sequence[Serving], objective: str
) -> str:
    """Renders rehearsal.html: the table, and what was in flight on both backends in each serving that was routed."""
    alone = set(map(name_alone, backends))
    routed = [serving for serving in servings if serving.arm not in alone and serving.samples]
    charts = [_draw(serving).render() for serving in routed]
    return render_template(
        "rehearsal.html.jinja",
        name=name,
        backends=backends,
        headings=HEADINGS,
        what=OBJECTIVES[objective][0],
        rows=list(list_rows(outcomes)),
        charts=charts,
    )


def _draw(serving: Serving) -> Chart:
    seconds = max(serving.samples[-1].at, *serving.due_s)
    ticks = [(seconds * part / 4, f"{seconds * part / 4:.0f}") for part in range(5)]
    samples = [sample for sample in serving.samples if sample.at >= 0]
    lines = [Line(style, [_make_point(sample, style) for sample in samples]) for style in ("low", "high")]
    title = (
        f"{serving.trace}, {serving.arm}, repeat {serving.repeat + 1}: in flight "
        f"({serving.switches} changes, {serving.moves} moves)"
    )
    y = axis_from_zero([point.y for line in lines for point in line.points], lambda value: f"{value:g}")
    return Chart(title, lines, Axis(0.0, seconds, ticks, has_grid=False, title="seconds"), y)


def _make_point(sample: Sample, style: str) -> Point:
    count = sample.low if style == "low" else sample.high
    return Point(sample.at, count, f"{sample.at:.1f} s: {count}")


def _show(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f})"
