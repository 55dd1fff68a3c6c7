"""Two published sweeps side by side: ratios, crossings by log2 interpolation, and which of them noise may have made."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.published.rows import Row, Sweep


@dataclass(frozen=True, slots=True)
class Metric:
    """`run_sd`: relative standard deviation of one run, from two sweeps of one configuration (docs/calibration.md)."""

    name: str
    read: Callable[[Row], float]
    run_sd: float
    higher_is_better: bool = False

    @property
    def noise(self) -> float:
        """Log ratios of two single runs stay within this in 95 of 100, where nothing differs."""
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
    """`low_first`: the low-load engine is better below it. `doubt`: why it may be none; None where it is credible."""

    at: float
    between: tuple[int, int]
    low_first: bool
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gains`: by level, the log ratio, positive where `low` is better. `ratios`: of the figures as published."""

    metric: Metric
    ratios: dict[int, float]
    gains: dict[int, float]
    crossings: Sequence[Crossing]

    @property
    def winner(self) -> str | None:
        """`low` or `high` where there is no crossing."""
        if self.crossings or not self.gains:
            return None
        return "low" if next(iter(self.gains.values())) > 0 else "high"


def compare(low: Sweep, high: Sweep) -> list[Comparison]:
    """By every metric, at the levels that both have. ValueError if there are none."""
    theirs = {row.concurrency: row for row in high.rows}
    rows = [(row, theirs[row.concurrency]) for row in low.rows if row.concurrency in theirs]
    if not rows:
        raise ValueError(f"{low.tag} and {high.tag} have no concurrency in common")
    return [_compare(metric, rows) for metric in METRICS]


def _compare(metric: Metric, rows: Sequence[tuple[Row, Row]]) -> Comparison:
    ratios = {mine.concurrency: metric.read(mine) / metric.read(theirs) for mine, theirs in rows}
    sign = 1 if metric.higher_is_better else -1
    gains = {level: sign * math.log(ratio) for level, ratio in ratios.items()}
    return Comparison(metric, ratios, gains, list(_find_crossings(metric, gains)))


def _find_crossings(metric: Metric, gains: dict[int, float]) -> Iterator[Crossing]:
    for (left, before), (right, after) in pairwise(gains.items()):
        if before * after < 0:
            octaves = math.log2(left) + math.log2(right / left) * before / (before - after)
            yield Crossing(2**octaves, (left, right), before > 0, _doubt(metric, gains, right))


def _doubt(metric: Metric, gains: dict[int, float], right: int) -> str | None:
    """Nobody wins it clearly on one of its sides, as far as the next crossing."""
    levels = list(gains)
    place = levels.index(right)
    below = _run(gains, levels[:place][::-1])
    above = _run(gains, levels[place:])
    for side, run in (("below", below), ("above", above)):
        if max(map(abs, run)) <= metric.noise:
            return f"{side} it the two differ by no more than single runs do ({metric.noise:.0%})"
    return None


def _run(gains: dict[int, float], levels: Sequence[int]) -> list[float]:
    """Gains from the first of `levels` on, as long as the sign holds."""
    run: list[float] = []
    for level in levels:
        if run and gains[level] * run[0] < 0:
            break
        run.append(gains[level])
    return run
