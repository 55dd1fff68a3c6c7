"""Two runs compared: what they measured on, their figures level by level, where their engines cross. Pure.

In: two Results. Out: a Comparison, and its JSON. A run that was broken off is compared as far as its cells go.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from loadtest.decide.confidence import Interval, do_overlap
from loadtest.decide.contrast import Contrast, contrast_samples
from loadtest.decide.cost import Cost
from loadtest.decide.crossing import Finding
from loadtest.results.curves import OBJECTIVES, Objective, group, make_trials
from loadtest.results.node import list_intervals
from loadtest.results.result import Result, encode_finding

SCHEMA = "crossover.comparison/1"
ALPHA = 0.05  # over all intervals of a comparison together
MAX_LOGARITHM = 600.0  # of a ratio: 10**260
SAME_PROMPTS = 0.02  # prompts are random words: their mean length differs by chance

Conversion = Callable[[str, float], float | None]  # of a backend and its throughput


THROUGHPUT_METRIC = "throughput_tok_s"
METRICS = (
    Objective(THROUGHPUT_METRIC, lambda cell: cell.throughput, higher_is_better=True),
    Objective("ttft_p50_s", lambda cell: cell.ttft_s.p50),
    Objective("tpot_p50_s", lambda cell: cell.tpot_s.p50),
)
RATIO = "throughput_low_over_high"
PER_GPU_HOUR, PER_MILLION = "tokens_per_gpu_hour", "cost_per_million_tokens"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both runs. `a` and `b`: geometric means of the repeats. `ends`: those of the interval of `ratio`;
    None where no level was measured twice. `level` is None for the mean over all common levels.
    """

    metric: str
    backend: str
    level: int | None
    a: float
    b: float
    ends: Interval | None

    @property
    def ratio(self) -> float:
        return self.b / self.a

    @property
    def differs(self) -> bool | None:
        """Whether the runs differ by more than chance; None without an interval."""
        return None if self.ends is None else not self.ends[0] <= 1 <= self.ends[1]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the fingerprint, the shape or the plan that is not the same in both runs."""

    name: str
    a: object
    b: object


@dataclass(frozen=True, slots=True)
class Crossing:
    """One objective. `do_overlap`: the confidence sets have a place in common; None unless both runs have a set."""

    objective: Objective
    a: Finding | None
    b: Finding | None
    do_overlap: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    a: Result
    b: Result
    differences: Sequence[Difference]
    rows: Sequence[Row]
    crossings: Sequence[Crossing]
    notes: Sequence[str]

    def to_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "a": _encode_run(self.a),
            "b": _encode_run(self.b),
            "notes": self.notes,
            "differences": self.differences,
            "figures": [_encode_row(row) for row in self.rows],
            "intervals_are": "95 % for all figures together",
            "crossover": {each.objective.name: _encode_crossing(each) for each in self.crossings},
        }


def compare_runs(a: Result, b: Result) -> Comparison:
    rows = _make_rows(a, b)
    rows += _add_costs(rows, a.plan.known_cost, b.plan.known_cost)
    return Comparison(
        a,
        b,
        list(_find_differences(a, b)),
        rows,
        _compare_crossings(a, b),
        [*_find_doubts(a, b), *_compare_nodes(a, b)],
    )


def _find_differences(a: Result, b: Result) -> Iterator[Difference]:
    one, other = dict(_flatten(_describe(a))), dict(_flatten(_describe(b)))
    for name in {**one, **other}:
        mine, theirs = one.get(name), other.get(name)
        if mine != theirs and not (name == "shape.prompt_tokens" and _are_close(mine, theirs)):
            yield Difference(name, mine, theirs)


def _describe(result: Result) -> Mapping[str, object]:
    """Describes a run without its seed, new each time, and its policy, which does not route pinned requests."""
    system = result.system
    plan = {name: value for name, value in asdict(result.plan).items() if name != "seed"}
    return {
        "model": system.model,
        "low": system.low,
        "high": system.high,
        "engines": system.engines,
        "gateway": system.gateway,
        "client": result.client,
        "shape": {"prompt_tokens": result.prompt_tokens, "completion_tokens": result.plan.tokens},
        "plan": plan,
    }


def _flatten(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flatten(inner, f"{name}.{key}" if name else str(key))


def _are_close(mine: object, theirs: object) -> bool:
    if not isinstance(mine, float) or not isinstance(theirs, float):
        return False
    return abs(mine - theirs) <= SAME_PROMPTS * max(mine, theirs)


def _make_rows(a: Result, b: Result) -> list[Row]:
    """Makes rows with intervals so wide that in 95 of 100 comparisons all together hold the truth (Bonferroni)."""
    found = list(_contrast(a, b))
    count = sum(1 for *_, contrast in found if contrast.error is not None)
    return [_make_row(metric, backend, contrast, ALPHA / max(count, 1)) for metric, backend, contrast in found]


def _contrast(a: Result, b: Result) -> Iterator[tuple[str, str, Contrast]]:
    """Yields metric, backend and contrast; for the ratio between the backends too, where the runs have the same two."""
    for metric in METRICS:
        for backend in (name for name in a.system.backends if name in b.system.backends):
            for each in contrast_samples(_sample(a, backend, metric), _sample(b, backend, metric)):
                yield metric.name, backend, each
    if a.system.backends == b.system.backends:
        for each in contrast_samples(_sample_gains(a), _sample_gains(b)):
            yield RATIO, "/".join(a.system.backends), each


def _sample(result: Result, backend: str, metric: Objective) -> dict[int, list[float]]:
    """Returns logarithms by level. Null pairs are left out: not every run has them, and they come first."""
    own = (cell for cell in result.cells if cell.backend == backend and not cell.is_null and not cell.void)
    return group((cell.level, math.log(value)) for cell in own if (value := metric.read(cell)))


def _sample_gains(result: Result) -> dict[int, list[float]]:
    return group((trial.level, trial.gain) for trial in make_trials(result.cells, result.system.low))


def _make_row(metric: str, backend: str, contrast: Contrast, alpha: float) -> Row:
    ends = contrast.find_ends(alpha)
    interval = (_exponentiate(ends[0]), _exponentiate(ends[1])) if ends else None
    return Row(metric, backend, contrast.level, math.exp(contrast.first), math.exp(contrast.second), interval)


def _exponentiate(logarithm: float) -> float:
    """Exponentiates, clipped to numbers that stay finite in any unit: with next to no degrees of freedom an interval is
    wider than the range of a float.
    """
    return math.exp(max(-MAX_LOGARITHM, min(MAX_LOGARITHM, logarithm)))


def _add_costs(rows: Sequence[Row], a: Cost, b: Cost) -> list[Row]:
    """Returns rows of costs, which are throughputs times known numbers, and so are their intervals. Those are not
    counted again in ALPHA: they hold whenever the intervals of the throughputs hold.
    """
    rates = [row for row in rows if row.metric == THROUGHPUT_METRIC]
    by_gpu = [_convert(row, PER_GPU_HOUR, a.find_tokens_per_gpu_hour, b.find_tokens_per_gpu_hour) for row in rates]
    is_one_currency = a.price and b.price and a.price.currency == b.price.currency
    by_money = [_convert(row, PER_MILLION, a.find_per_million, b.find_per_million) for row in rates if is_one_currency]
    return [row for row in (*by_gpu, *by_money) if row is not None]


def _convert(row: Row, metric: str, first: Conversion, second: Conversion) -> Row | None:
    """Converts a throughput's row to a unit that may grow as throughput falls; None where a run cannot be converted."""
    a, b = first(row.backend, row.a), second(row.backend, row.b)
    if a is None or b is None:
        return None
    ends = None
    if row.ends:
        ratios = [(second(row.backend, row.a * end) or math.nan) / a for end in row.ends]
        ends = (min(ratios), max(ratios))
    return Row(metric, row.backend, row.level, a, b, ends)


def _compare_crossings(a: Result, b: Result) -> list[Crossing]:
    known = [each for each in OBJECTIVES if each.name in {**a.findings, **b.findings}]
    pairs = [(each, a.findings.get(each.name), b.findings.get(each.name)) for each in known]
    sets = [(_parts(one), _parts(other)) for _, one, other in pairs]
    overlaps = [do_overlap(one, other) if one and other else None for one, other in sets]
    return [Crossing(*pair, overlap) for pair, overlap in zip(pairs, overlaps, strict=True)]


def _parts(finding: Finding | None) -> list[Interval]:
    return [part for change in finding.changes for part in change.set] if finding else []


def _compare_nodes(a: Result, b: Result) -> Iterator[str]:
    """Describes the node models' numbers whose intervals have nothing in common."""
    if a.node is None or b.node is None:
        return
    theirs = list_intervals(b.node, b.system)
    for name, (low, high) in list_intervals(a.node, a.system).items():
        other_low, other_high = theirs.get(name, (low, high))
        if low > other_high or high < other_low:
            shown = f"{low:.3g} to {high:.3g} in A, {other_low:.3g} to {other_high:.3g} in B"
            yield f"node model: {name} is {shown} (95 %, each by itself)"


def _find_doubts(a: Result, b: Result) -> Iterator[str]:
    if a.run == b.run:
        yield "A and B are the same run."
    for name, result in (("A", a), ("B", b)):
        if result.failure:
            cells = f"compared as far as its {len(result.cells)} cells go"
            yield f"{name} is {result.status}, {cells}: {result.failure.rstrip('.')}."
    if a.plan.tokens != b.plan.tokens:
        lengths = f"answers of {a.plan.tokens} tokens in A, of {b.plan.tokens} in B"
        yield f"UNEQUAL WORK: {lengths}; what differs may be that alone."
    yield from _find_gaps(a, b)


def _find_gaps(a: Result, b: Result) -> Iterator[str]:
    for name, mine, theirs in (("A", a, b), ("B", b, a)):
        backends = [each for each in mine.system.backends if each not in theirs.system.backends]
        if backends:
            yield f"Only {name} measured {' and '.join(backends)}."
        levels = sorted({cell.level for cell in mine.cells} - {cell.level for cell in theirs.cells})
        if levels:
            yield f"Only {name} measured at {', '.join(map(str, levels))} in flight."


def _encode_run(result: Result) -> dict[str, object]:
    names = ("run", "status", "failure", "started_at")
    return {name: getattr(result, name) for name in names} | {
        "cells": len(result.cells),
        "threshold": result.threshold,
    }


def _encode_row(row: Row) -> dict[str, object]:
    names = ("metric", "backend", "level", "a", "b", "ratio")
    return {name: getattr(row, name) for name in names} | {"interval": row.ends, "differs": row.differs}


def _encode_crossing(crossing: Crossing) -> dict[str, object]:
    return {
        "a": encode_finding(crossing.a) if crossing.a else None,
        "b": encode_finding(crossing.b) if crossing.b else None,
        "sets_overlap": crossing.do_overlap,
    }
