"""How two runs' figures differ at every level, and how well that is known. Pure.

In: the logarithm of a figure in each repeat, by level, of two runs. Out: Contrasts. The cells of two runs are no pairs:
at a level each run has its own mean, and both runs are assumed to scatter alike. A level's variance is that of its
cells about their run's mean, drawn towards what all levels share as in `estimate`. The standard error of the difference
of two means of n and m cells is sqrt(variance (1/n + 1/m)), and Student's t with the moderated degrees of freedom gives
the interval. Differences between whole runs (a machine warmer than yesterday) are not part of that variance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.decide.estimate import Prior, Scatter, find_loud, pool, quantile, share_variances

Samples = Mapping[int, Sequence[float]]  # by level


@dataclass(frozen=True, slots=True)
class Contrast:
    """Means of both runs, in logarithms. `error`: the standard error of their difference; None where nothing was
    measured twice. `level` is None for the mean over all levels.
    """

    level: int | None
    first: float
    second: float
    error: float | None = None
    dof: float = 0.0

    @property
    def difference(self) -> float:
        return self.second - self.first

    def find_ends(self, alpha: float) -> tuple[float, float] | None:
        """Returns the ends of the interval that misses the true difference with probability `alpha`."""
        if self.error is None:
            return None
        reach = quantile(alpha, self.dof) * self.error
        return self.difference - reach, self.difference + reach


def contrast_samples(first: Samples, second: Samples) -> list[Contrast]:
    """Returns contrasts at the levels that both runs measured, rising; then their mean, if there are several."""
    levels = sorted(level for level in first if level in second)
    known = _share(levels, first, second)
    found = [_contrast(level, first[level], second[level], known.get(level)) for level in levels]
    return [*found, *_average(found)]


def _share(levels: Sequence[int], first: Samples, second: Samples) -> dict[int, Prior]:
    """Returns each level's moderated variance; a loud level keeps its own. Empty where no level was measured twice."""
    scatters = [_scatter(level, first[level], second[level]) for level in levels]
    loud = find_loud(scatters)
    quiet = [each for each in scatters if each not in loud]
    pooled = pool(quiet)
    return {} if pooled is None else share_variances(quiet, loud, pooled)


def _scatter(level: int, first: Sequence[float], second: Sequence[float]) -> Scatter:
    squares = sum((value - fmean(values)) ** 2 for values in (first, second) for value in values)
    return Scatter(level, squares, len(first) + len(second) - 2)


def _contrast(level: int, first: Sequence[float], second: Sequence[float], known: Prior | None) -> Contrast:
    if known is None:
        return Contrast(level, fmean(first), fmean(second))
    error = math.sqrt(known.variance * (1 / len(first) + 1 / len(second)))
    return Contrast(level, fmean(first), fmean(second), error, known.dof)


def _average(found: Sequence[Contrast]) -> list[Contrast]:
    """Averages over levels with equal weights. Its degrees of freedom are the fewest of any level: never too many."""
    if len(found) < 2:
        return []
    first, second = fmean(each.first for each in found), fmean(each.second for each in found)
    errors = [each.error for each in found if each.error is not None]
    if len(errors) < len(found):
        return [Contrast(None, first, second)]
    return [Contrast(None, first, second, math.hypot(*errors) / len(found), min(each.dof for each in found))]
