"""Percentiles that know when they may be printed, and the arithmetic of one answer. Pure.

In: samples, or one answer's token events. Out: seconds and token counts. Never averages percentiles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from loadtest.answer import Answer


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, by linear interpolation; None where `n` samples are too few to tell."""

    n: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@cache
def min_samples(quantile: float, confidence: float) -> int:
    """The fewest samples of which at least two lie beyond `quantile` with `confidence`.

    MLPerf's early-stopping rule, so that the tail is estimated from at least one sample besides the worst.
    """
    beyond, n = 1 - quantile, 1
    while quantile**n + n * beyond * quantile ** (n - 1) > 1 - confidence:
        n += 1
    return n


P90_SAMPLES = min_samples(0.90, 0.95)  # 46
P99_SAMPLES = min_samples(0.99, 0.99)  # 662


def percentiles(samples: Sequence[float]) -> Percentiles:
    n = len(samples)
    if not n:
        return Percentiles(0)
    p50, p90, p99 = (float(value) for value in np.percentile(samples, (50, 90, 99), method="linear"))
    return Percentiles(n, p50, p90 if n >= P90_SAMPLES else None, p99 if n >= P99_SAMPLES else None)


def ttft_s(answer: Answer) -> float | None:
    return answer.times[0] - _asked_at(answer) if answer.times else None


def e2e_s(answer: Answer) -> float | None:
    return answer.finished_at - _asked_at(answer) if answer.finished_at is not None else None


def tpot_s(answer: Answer) -> float | None:
    """Seconds per token after the first event's: unlike gaps between chunks it is right however tokens are bundled."""
    if answer.finished_at is None or not answer.completion_tokens:
        return None
    after_first = answer.completion_tokens - answer.counts[0] * scale(answer)
    return (answer.finished_at - answer.times[0]) / after_first if after_first > 0 else None


def scale(answer: Answer) -> float:
    """Tokens per counted event: 1 where the server counts every event, else so that the events add up to usage."""
    if answer.is_counted or not answer.is_complete or not answer.completion_tokens:
        return 1.0
    return answer.completion_tokens / answer.counts[-1]


def tokens_between(answer: Answer, start: float, end: float) -> float:
    """Tokens whose event fell in (start, end], in events where the server did not count; see `scale`."""
    return _count_at(answer, end) - _count_at(answer, start)


def _asked_at(answer: Answer) -> float:
    return answer.started_at if answer.due_at is None else answer.due_at


def _count_at(answer: Answer, at: float) -> int:
    index = int(np.searchsorted(answer.times, at, side="right"))
    return answer.counts[index - 1] if index else 0


def phase_order(starts: Sequence[float], period_s: float) -> float:
    """|mean exp(2 pi i start / period)|: 1 where streams start together, near 0 where they are spread out."""
    angles = [2 * math.pi * start / period_s for start in starts]
    return math.hypot(sum(map(math.cos, angles)), sum(map(math.sin, angles))) / len(starts)
