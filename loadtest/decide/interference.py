"""How much two engines slow each other down, from cells of each alone and of both. Pure.

In: milliseconds of steps, in turns. Out: a share of the other engine's step, and its interval.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadtest.decide.estimate import quantile

ALPHA = 0.05
MOST = 4.0
Interference: TypeAlias = tuple[float, float, float]  # the share, and the ends of its interval


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds of each engine's steps alone, before and after, and while the other one works too."""

    low_ms: float
    high_ms: float
    low_beside_ms: float
    high_beside_ms: float

    @property
    def share(self) -> float:
        """By how much of the other's own step a step becomes longer, in the mean of both engines."""
        low = (self.low_beside_ms - self.low_ms) / self.high_ms
        return (low + (self.high_beside_ms - self.high_ms) / self.low_ms) / 2


def find_interference(turns: Sequence[Turn]) -> Interference:
    """Returns the mean share of the turns, with its interval: from 0 to MOST, with fewer than two turns all of it."""
    shares = [turn.share for turn in turns]
    share = statistics.fmean(shares) if shares else 0.0
    reach = MOST
    if len(shares) > 1:
        reach = quantile(ALPHA, len(shares) - 1) * statistics.stdev(shares) / math.sqrt(len(shares))
    low, middle, high = (round(min(max(end, 0.0), MOST), 3) for end in (share - reach, share, share + reach))
    return middle, low, high
