"""How fast requests arrive, by counts at some instants: at once where the rate jumps, with patience where it may not.

Pure.
"""

import math
from collections.abc import Sequence

from gateway.core import Arrivals

FAST_S = 0.3
ENOUGH = 200  # arrivals for a mean: Poisson's scatter is 7 % then
LEAST_S, MOST_S = 1.0, 2.0


def find_rate(arrivals: Sequence[Arrivals], evidence: float) -> float:
    """Returns arrivals a second: the mean over the last second or some more, unless the last FAST_S contradict it.

    A short window sees a step at once, but at 110 a second 0.3 s of Poisson arrivals scatter by 17 %. So it counts only
    where it differs from the long one by more than `evidence` standard deviations. The long one holds ENOUGH arrivals,
    within its bounds: engines that are almost full are wrongly left, or kept, by a rate that is 15 % off.
    """
    if len(arrivals) < 2:
        return 0.0
    now = arrivals[-1]
    slow = _mean(_find_since(arrivals, now.at - LEAST_S), now)
    slow = _mean(_find_since(arrivals, now.at - min(max(ENOUGH / max(slow, 1.0), LEAST_S), MOST_S)), now)
    start = _find_since(arrivals, now.at - FAST_S)
    expected = slow * (now.at - start.at)
    if abs(now.total - start.total - expected) > evidence * math.sqrt(max(expected, 1.0)):
        return _mean(start, now)
    return slow


def _find_since(arrivals: Sequence[Arrivals], at: float) -> Arrivals:
    """Returns the last sample that is not after `at`, or the oldest."""
    return next((sample for sample in reversed(arrivals) if sample.at <= at + 1e-9), arrivals[0])


def _mean(start: Arrivals, end: Arrivals) -> float:
    return (end.total - start.total) / max(end.at - start.at, 1e-3)
