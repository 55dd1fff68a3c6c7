"""A comparison of two runs as plain text for a terminal. Pure."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

from loadtest.decide.confidence import Interval
from loadtest.report.text import describe, describe_threshold, show_money, show_ms, show_rate, show_tokens
from loadtest.results.comparison import METRICS, PER_GPU_HOUR, PER_MILLION, RATIO, Comparison, Difference, Row
from loadtest.results.curves import Objective
from loadtest.results.result import Result

TITLES = {
    "throughput_tok_s": "Throughput, tokens per second",
    "ttft_p50_s": "Time to first token, p50",
    "tpot_p50_s": "Time per output token, p50",
    PER_GPU_HOUR: "Tokens per GPU-hour, millions",
    PER_MILLION: "Money per million tokens",
    RATIO: "Throughput of one backend over the other's, in pairs",
}
FIGURES: Mapping[str, Callable[[float], str]] = {
    PER_GPU_HOUR: show_tokens,
    PER_MILLION: show_money,
    RATIO: "{:.3f}".format,
}
HIGHER_IS_BETTER = {metric.name: metric.higher_is_better for metric in METRICS}
CHANCE = (
    "In 95 of 100 comparisons all intervals together hold the truth. Chance means how cells of one run differ among "
    "themselves:\na difference between whole runs, a warmer machine or another neighbour on it, shows as a difference."
)
MAX_SPREAD = 10.0  # an interval whose upper end is more than this many times its lower one is not shown
OVERLAP = {
    True: "the sets overlap: the crossing may be where it was",
    False: "the sets do not overlap: the crossing has moved",
}


def render_comparison(comparison: Comparison) -> str:
    return "\n".join((*_head(comparison), *_figures(comparison), *_crossings(comparison), ""))


def _head(comparison: Comparison) -> Iterator[str]:
    yield f"A  {_name(comparison.a)}"
    yield f"B  {_name(comparison.b)}"
    yield from comparison.notes
    yield ""
    if not comparison.differences:
        yield "Engines, versions, settings, shape and plan are the same."
        return
    yield "What differs"
    width = max(len(difference.name) for difference in comparison.differences)
    yield from (_describe(difference, width) for difference in comparison.differences)


def _name(result: Result) -> str:
    system = result.system
    backends = f"{system.low} (low load) against {system.high} (high load)"
    return f"{result.run}: {result.status}, {result.started_at}, {len(result.cells)} cells; {system.model}, {backends}"


def _describe(difference: Difference, width: int) -> str:
    return f"  {difference.name:<{width}}  {_show(difference.a)} -> {_show(difference.b)}"


def _show(value: object) -> str:
    if value is None:
        return "not known"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _figures(comparison: Comparison) -> Iterator[str]:
    width = max((len(row.backend) for row in comparison.rows), default=0)
    for metric, rows in groupby(comparison.rows, key=lambda row: row.metric):
        yield ""
        yield TITLES[metric]
        yield f"  in flight  {'backend':<{width}} {'A':>9} {'B':>9} {'B/A':>7}  interval"
        yield from (_describe_row(row, width) for row in rows)
    yield ""
    yield CHANCE if comparison.rows else "No level was measured in both runs."


def _describe_row(row: Row, width: int) -> str:
    level = "all" if row.level is None else str(row.level)
    figures = f"{_show_figure(row, row.a):>9} {_show_figure(row, row.b):>9} {row.ratio:>7.3f}"
    return (
        f"  {level:>9}  {row.backend:<{width}} {figures}  {_show_ends(row.ends):<14}  {_describe_verdict(row)}".rstrip()
    )


def _show_ends(ends: Interval | None) -> str:
    if ends is None:
        return "n/a"
    return f"{ends[0]:.3f} to {ends[1]:.3f}" if ends[1] < MAX_SPREAD * ends[0] else "too noisy"


def _show_figure(row: Row, value: float) -> str:
    if row.metric in FIGURES:
        return FIGURES[row.metric](value)
    return show_rate(value) if HIGHER_IS_BETTER[row.metric] else show_ms(value)


def _describe_verdict(row: Row) -> str:
    """Describes how B differs from A; empty where the difference may be chance."""
    if not row.differs:
        return ""
    if row.metric in FIGURES:
        return "more in B" if row.ratio > 1 else "less in B"
    return "B is faster" if (row.ratio > 1) == HIGHER_IS_BETTER[row.metric] else "B is slower"


def _describe_crossing(objective: Objective, result: Result) -> str:
    """Describes one run's crossing. A run with findings, but none by this objective, was not asked for it."""
    if result.findings and objective.name not in result.findings:
        return "not asked for"
    return describe(objective, result)


def _crossings(comparison: Comparison) -> Iterator[str]:
    for crossing in comparison.crossings:
        yield ""
        yield f"Crossing by {crossing.objective.name}"
        yield f"  A  {_describe_crossing(crossing.objective, comparison.a)}"
        yield f"  B  {_describe_crossing(crossing.objective, comparison.b)}"
        if crossing.do_overlap is not None:
            yield f"  {OVERLAP[crossing.do_overlap]}"
    yield ""
    yield "Threshold"
    yield f"  A  {describe_threshold(comparison.a)}"
    yield f"  B  {describe_threshold(comparison.b)}"
