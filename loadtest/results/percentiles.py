"""Percentiles that are left out where samples are too few. Pure.

In: samples. Out: seconds. Percentiles are never averaged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, by linear interpolation; None where `n` samples are too few. `mean`: of all samples."""

    n: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None


@cache
def min_samples(quantile: float, confidence: float) -> int:
    """Returns the smallest number of samples of which at least two lie beyond `quantile` with `confidence`.

    This is MLPerf's early-stopping rule: the tail is estimated from at least one sample besides the worst.
    """
    beyond, n = 1 - quantile, 1
    while quantile**n + n * beyond * quantile ** (n - 1) > 1 - confidence:
        n += 1
    return n


P90_SAMPLES = min_samples(0.90, 0.95)  # 46
P99_SAMPLES = min_samples(0.99, 0.99)  # 662


def percentiles(samples: Iterable[float | None]) -> Percentiles:
    """Finds percentiles of the samples that are not None."""
    known = [sample for sample in samples if sample is not None]
    n = len(known)
    if not n:
        return Percentiles(0)
    p50, p90, p99 = (float(value) for value in np.percentile(known, (50, 90, 99), method="linear"))
    mean = float(np.mean(known))
    return Percentiles(n, p50, p90 if n >= P90_SAMPLES else None, p99 if n >= P99_SAMPLES else None, mean)
