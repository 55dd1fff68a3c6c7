"""A comparison of published sweeps as Markdown."""

from collections.abc import Iterator, Sequence

from loadtest.published.compare import Comparison, Crossing
from loadtest.published.rows import Sweep


def render(low: Sweep, high: Sweep, comparisons: Sequence[Comparison], faults: Sequence[str]) -> str:
    """Ratios are low over high as published; a crossing in brackets is one that noise may have made."""
    levels = sorted({level for comparison in comparisons for level in comparison.ratios})
    lines = [
        f"# {low.tag} (low load) against {high.tag} (high load)",
        "",
        "Published single runs: crossings by interpolation over log2 of the concurrency. One in brackets may be none.",
        "",
        f"| metric | {' | '.join(f'c={level}' for level in levels)} | crossing |",
        f"| --- |{' ---: |' * len(levels)} --- |",
        *(_row(comparison, levels) for comparison in comparisons),
        "",
        *_doubts(comparisons),
        *(f"- {fault}" for fault in faults),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(comparison: Comparison, levels: Sequence[int]) -> str:
    ratios = (f"{comparison.ratios[level]:.3f}" if level in comparison.ratios else "" for level in levels)
    return f"| {comparison.metric.name} | {' | '.join(ratios)} | {describe(comparison)} |"


def describe(comparison: Comparison) -> str:
    if comparison.winner:
        return f"none: {comparison.winner} is better at every level"
    return ", ".join(map(_describe_crossing, comparison.crossings))


def _describe_crossing(crossing: Crossing) -> str:
    words = f"{crossing.at:.1f} ({'low to high' if crossing.low_first else 'high to low'})"
    return f"[{words}]" if crossing.doubt else words


def _doubts(comparisons: Sequence[Comparison]) -> Iterator[str]:
    for comparison in comparisons:
        for crossing in comparison.crossings:
            if crossing.doubt:
                yield f"- INSIDE NOISE: {comparison.metric.name} near {crossing.at:.1f}: {crossing.doubt}."
