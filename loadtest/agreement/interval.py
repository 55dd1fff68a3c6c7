"""How well a mean is known, and whether two testers agree. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t as student

CONFIDENCE = 0.90

Verdict = Literal["agree", "differ", "undecided"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Student's for a mean of independent samples; infinitely wide with fewer than two."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, samples: Sequence[float], confidence: float = CONFIDENCE) -> "Interval":
        n = len(samples)
        if n < 2:
            return cls(samples[0] if samples else math.nan, math.inf)
        quantile = float(student.ppf((1 + confidence) / 2, n - 1))
        return cls(statistics.fmean(samples), quantile * statistics.stdev(samples) / math.sqrt(n))

    @property
    def share(self) -> float:
        """Half its width over its mean."""
        return self.half_width / abs(self.mean) if self.mean else math.inf

    def verdict(self, margin: float) -> Verdict:
        """Of a difference: whether it surely lies within the margin, surely beyond it, or neither.

        With 90 % intervals "agree" is the equivalence test by two one-sided tests at 5 % (Schuirmann 1987). Testing
        for a difference instead would let noise pass for agreement, and call a precise 0.1 % a disagreement.
        """
        if abs(self.mean) + self.half_width <= margin:
            return "agree"
        return "differ" if abs(self.mean) - self.half_width > margin else "undecided"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of `theirs` from `ours` as a share, round by round: what a round does to both of them cancels."""
    return Interval.of([their / our - 1 for our, their in zip(ours, theirs, strict=True)])
