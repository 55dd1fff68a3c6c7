"""Two published sweeps compared: ratios, crossings by log2 interpolation, and which of them may be noise. Pure.

Published sweeps are single runs in one order, of which only aggregates are known. So there are no confidence sets here:
a crossing counts as credible where the levels on both its sides differ by more than single runs are known to scatter.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from loadtest.report.markdown import draw_table
from loadtest.report.published_sweeps import Row, Sweep, find_faults


@dataclass(frozen=True, slots=True)
class Metric:
    """`run_sd`: relative standard deviation of one run, from two sweeps of one configuration (docs/calibration.md)."""

    name: str
    read: Callable[[Row], float]
    run_sd: float
    higher_is_better: bool = False

    @property
    def noise(self) -> float:
        """Where nothing differs, log ratios of two single runs stay within this in 95 of 100."""
        return 1.96 * math.sqrt(2) * self.run_sd


METRICS = (
    Metric("throughput_tok_s", lambda row: row.throughput_tok_s, 0.011, higher_is_better=True),
    Metric("derived_steady_throughput_tok_s", lambda row: row.steady_throughput, 0.011, higher_is_better=True),
    Metric("ttft_p50_s", lambda row: row.ttft_p50_s, 0.094),
    Metric("ttft_p99_s", lambda row: row.ttft_p99_s, 0.101),
    Metric("itl_p50_ms", lambda row: row.itl_p50_ms, 0.006),
    Metric("itl_p99_ms", lambda row: row.itl_p99_ms, 0.026),
    Metric("itl_mean_ms", lambda row: row.itl_mean_ms, 0.011),
    Metric("derived_e2e_p50_s", lambda row: row.e2e_p50_s, 0.011),
    Metric("derived_e2e_mean_littles_s", lambda row: row.e2e_mean_s, 0.011),
)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A crossing. `low_first`: the low-load engine is better below. `doubt`: why it may be noise; None if credible."""

    at: float
    between: tuple[int, int]
    low_first: bool
    doubt: str | None = None

    def __str__(self) -> str:
        words = f"{self.at:.1f} ({'low to high' if self.low_first else 'high to low'})"
        return f"[{words}]" if self.doubt else words


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric. `gains`: log ratios by level, above 0 where `low` is better. `ratios`: low over high as published."""

    metric: Metric
    ratios: dict[int, float]
    gains: dict[int, float]
    crossings: Sequence[Crossing]

    @property
    def verdict(self) -> str:
        if self.crossings or not self.gains:
            return ", ".join(map(str, self.crossings))
        return f"none: {'low' if next(iter(self.gains.values())) > 0 else 'high'} is better at every level"


def compare(low: Sweep, high: Sweep) -> list[Comparison]:
    """Compares the sweeps by every metric, at the levels that both have. Raises ValueError if there are none."""
    theirs = {row.concurrency: row for row in high.rows}
    rows = [(row, theirs[row.concurrency]) for row in low.rows if row.concurrency in theirs]
    if not rows:
        raise ValueError(f"{low.tag} and {high.tag} have no concurrency in common")
    return [_compare(metric, rows) for metric in METRICS]


def render(low: Sweep, high: Sweep) -> str:
    """Renders Markdown with the sweeps' faults. Ratios are low over high as published; brackets mark possible noise.

    Raises ValueError as `compare` does.
    """
    comparisons = compare(low, high)
    levels = sorted({level for comparison in comparisons for level in comparison.ratios})
    rows = [
        (
            each.metric.name,
            *(f"{each.ratios[level]:.3f}" if level in each.ratios else "" for level in levels),
            each.verdict,
        )
        for each in comparisons
    ]
    doubts = [
        f"INSIDE NOISE: {each.metric.name} near {crossing.at:.1f}: {crossing.doubt}."
        for each in comparisons
        for crossing in each.crossings
        if crossing.doubt
    ]
    headings = ("metric", *(f"c={level}" for level in levels), "crossing")
    lines = [
        f"# {low.tag} (low load) against {high.tag} (high load)",
        "",
        "Published single runs: crossings by interpolation over log2 of the concurrency. One in brackets may be none.",
        "",
        *draw_table(headings, rows, [" --- ", *[" ---: "] * len(levels), " --- "]),
        "",
        *(f"- {sentence}" for sentence in (*doubts, *find_faults(low), *find_faults(high))),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _compare(metric: Metric, rows: Sequence[tuple[Row, Row]]) -> Comparison:
    ratios = {mine.concurrency: metric.read(mine) / metric.read(theirs) for mine, theirs in rows}
    sign = 1 if metric.higher_is_better else -1
    gains = {level: sign * math.log(ratio) for level, ratio in ratios.items()}
    return Comparison(metric, ratios, gains, list(_find_crossings(metric, gains)))


def _find_crossings(metric: Metric, gains: dict[int, float]) -> Iterator[Crossing]:
    for (left, before), (right, after) in pairwise(gains.items()):
        if before * after < 0:
            octaves = math.log2(left) + math.log2(right / left) * before / (before - after)
            yield Crossing(2**octaves, (left, right), before > 0, _find_doubt(metric, gains, right))


def _find_doubt(metric: Metric, gains: dict[int, float], right: int) -> str | None:
    """Returns a sentence if on one side, as far as the next crossing, no level has a clear winner."""
    levels = list(gains)
    place = levels.index(right)
    for side, outwards in (("below", levels[:place][::-1]), ("above", levels[place:])):
        if max(map(abs, _take_while_same_sign(gains, outwards))) <= metric.noise:
            return f"{side} it the two differ by no more than single runs do ({metric.noise:.0%})"
    return None


def _take_while_same_sign(gains: dict[int, float], levels: Sequence[int]) -> Iterator[float]:
    first = gains[levels[0]]
    return takewhile(lambda gain: gain * first >= 0, (gains[level] for level in levels))
