"""How much longer one arm's answers take than another's for the same requests, and how well that is known. Pure.

In: every answer's time by arm, repeat and request, all arms having served the same requests. Out: ratios with
intervals that hold at every look: one looks after each repeat whether a further one is needed (repeated confidence
intervals; Jennison and Turnbull, Journal of the Royal Statistical Society B 51(3), 1989).

Requests near each other in a trace depend on each other, and a whole run is faster or slower than the next for reasons
that no resampling within it shows. So a ratio's variance is that between repeats, and at least that between blocks of
the trace within them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, ndtr

from loadtest.decide.estimate import quantile

SURE, SPENT = 0.95, 0.9
MAX_BLOCKS, LEAST_IN_BLOCK = 10, 20
LOUD_ALPHA = 0.003  # what scatters more than the rest by chance so rarely does not share its variance with it
GRID = 3001

Values: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio, and the interval that holds it with the probability SURE; None for both with fewer than two repeats."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Contrast:
    """Natural logarithm of a ratio of two arms' times, with its standard error, known with `dof` degrees of freedom."""

    log: float
    error: float
    dof: float

    def reach(self, alpha: float) -> float:
        return quantile(alpha, self.dof) * self.error


def compare(arm: Values, rivals: Sequence[Values], others: Sequence[Values], alpha: float) -> Ratio:
    """Returns the arm's time over that of the fastest rival, with the interval at `alpha`. Times by repeat and request.

    `others`: further arms, whose scatter from repeat to repeat is pooled with that of the two compared. Which rival is
    the fastest is not known but measured: the lower end allows for each that is not surely slower (Bonferroni), and
    the upper end is that of the worst ratio.
    """
    best = min(rivals, key=lambda times: float(times.sum()))
    value = float(arm.sum() / best.sum())
    if len(arm) < 2:
        return Ratio(value)
    arms = [arm, *rivals, *others]
    doubtful = [each for each in rivals if each is best or not _is_slower(each, best, arms, alpha)]
    contrasts = [_contrast(arm, each, arms) for each in doubtful]
    low = max(each.log - each.reach(alpha / len(doubtful)) for each in contrasts)
    high = max(each.log + each.reach(alpha) for each in contrasts)
    return Ratio(value, math.exp(low), math.exp(high))


@cache
def spend_alpha(most: int) -> Sequence[float]:
    """Divides 1 - SURE among looks after 2, 3 ... `most` repeats. Returns the two-sided alpha of each.

    By look k the part (k / most)^4 of it is spent, whatever stops the repeats (Lan and DeMets, Biometrika 70(3), 1983).
    The alphas are those of a normal sum to which each repeat adds as much. For Student's t of few degrees of freedom
    they are a tenth too high (simulated), so that a tenth is kept back.
    """
    values: Values = np.asarray(np.linspace(-6, 6, GRID) * math.sqrt(most), dtype=np.float64)
    step = float(values[1] - values[0])
    one_repeat = _normal(values - values[GRID // 2], 1)
    going_on, spent, alphas = _normal(values, 2), 0.0, []
    for look in range(2, most + 1):
        aim = SPENT * (1 - SURE) * (look / most) ** 4
        tail = np.cumsum(going_on[::-1]) * step
        bound = float(np.interp((aim - spent) / 2, tail, values[::-1]))
        alphas.append(2 * float(ndtr(-bound / math.sqrt(look))))
        spent = aim
        going_on = np.convolve(np.where(abs(values) < bound, going_on, 0.0), one_repeat, "same") * step
    return tuple(alphas)


def _normal(values: Values, variance: float) -> Values:
    return np.asarray(np.exp(-(values**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance), dtype=np.float64)


def _is_slower(arm: Values, best: Values, arms: Sequence[Values], alpha: float) -> bool:
    contrast = _contrast(arm, best, arms)
    return contrast.log > contrast.reach(alpha)


def _contrast(arm: Values, other: Values, arms: Sequence[Values]) -> Contrast:
    rest = [each for each in arms if each is not arm and each is not other]
    logs = [np.log(each.sum(axis=1)) for each in (arm, other, *rest)]
    variance, dof = _find_scatter(logs)
    variance = max(2 * variance, _find_block_variance(arm, other))
    return Contrast(float((logs[0] - logs[1]).mean()), math.sqrt(variance / len(arm)), dof)


def _find_scatter(logs: Sequence[Values]) -> tuple[float, float]:
    """Returns the variance of one run's log time, and its degrees of freedom. `logs`: by arm, the two compared first.

    Both of a pair are compared within each repeat; each further arm adds its difference from the mean of those before,
    if that scatters like theirs. So does the mean of all: a drift from repeat to repeat, which pairs are free of, shows
    there and then is left out. The compared pair's own scatter counts twice where it is the larger.
    """
    repeats = len(logs[0])
    own = squares = _squares((logs[0] - logs[1]) / math.sqrt(2))
    dof, count, mean = repeats - 1, 2, (logs[0] + logs[1]) / 2
    for log in sorted(logs[2:], key=lambda each: _squares(each - mean)):
        further = _squares((log - mean) * math.sqrt(count / (count + 1)))
        if _is_loud(further, repeats - 1, squares, dof, LOUD_ALPHA / len(logs[2:])):
            break
        squares, dof, count, mean = squares + further, dof + repeats - 1, count + 1, (count * mean + log) / (count + 1)
    common = _squares(mean * math.sqrt(count))
    if not _is_loud(common, repeats - 1, squares, dof, LOUD_ALPHA):
        squares, dof = squares + common, dof + repeats - 1
    pooled = squares / dof
    return max(pooled, (own / (repeats - 1) + 2 * pooled) / 3), dof


def _squares(values: Values) -> float:
    return float(((values - values.mean()) ** 2).sum())


def _is_loud(squares: float, dof: int, others: float, others_dof: int, alpha: float) -> bool:
    if others <= 0:
        return squares > 0
    return float(fdtrc(dof, others_dof, squares / dof / (others / others_dof))) < alpha


def _find_block_variance(arm: Values, other: Values) -> float:
    """Returns the variance of one repeat's log ratio that its blocks show: by how much each block's part in the ratio
    differs from the same block's in other repeats.
    """
    repeats, requests = len(arm), len(arm[0])
    blocks = max(min(requests // LEAST_IN_BLOCK, MAX_BLOCKS), 1)
    if blocks == 1:
        return 0.0
    starts = np.arange(blocks) * requests // blocks
    parts = _share(arm, starts) - _share(other, starts)
    squares = float(((parts - parts.mean(axis=0)) ** 2).sum())
    return squares / (repeats - 1) * (blocks / (blocks - 1))


def _share(times: Values, starts: NDArray[np.int64]) -> Values:
    shares: Values = np.add.reduceat(times, starts, axis=1) / times.sum(axis=1, keepdims=True)
    return shares
