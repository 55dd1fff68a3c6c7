"""The gain at every level that was measured, and how well it is known. Pure.

In: trials. Out: an Estimate. The model is least squares with one mean per level and one effect of the order within a
pair (who is measured first). Variances are moderated: each level's own, drawn towards what all levels share, as far as
they resemble each other (Smyth, Statistical Applications in Genetics and Molecular Biology 3(1), 2004, section 6.2).
Throughput scatters alike at most levels, times to first token do not, and the two or three pairs of one level are too
few to show it. A level that scatters out of all proportion keeps its own variance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy.special import digamma, fdtrc, polygamma, stdtrit

LOUD_ALPHA = 0.02
MIN_QUIET = 3  # levels that must remain when others are called loud


@dataclass(frozen=True, slots=True)
class Trial:
    """One pair of cells. `gain`: natural logarithm of the low-load backend's figure over the other's; positive where
    it is better.
    """

    level: int
    gain: float
    low_first: bool

    @property
    def order(self) -> int:
        return 1 if self.low_first else -1


@dataclass(frozen=True, slots=True)
class Level:
    """One level. `gain`: the mean gain, without the effect of order. `variance`: that of a single pair's gain, known
    with `dof` degrees of freedom. `order`: mean order of its pairs, 0 where both backends came first equally often.
    """

    level: int
    gain: float
    pairs: int
    variance: float
    dof: float
    order: float = 0.0

    @property
    def octave(self) -> float:
        return math.log2(self.level)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Levels in rising order. `order_effect`: what being measured first adds to the gain, with its variance. `pair_sd`:
    standard deviation of one pair's gain over all levels, known with `dof` degrees of freedom.
    """

    levels: tuple[Level, ...]
    order_effect: float
    order_variance: float
    pair_sd: float
    dof: float

    def error(self, level: Level) -> float:
        """Standard error of the level's gain."""
        return math.sqrt(level.variance / level.pairs + self.order_variance * level.order**2)

    def is_apart(self, level: Level, gain: float, alpha: float) -> bool:
        """Whether the level's gain differs from `gain`, two-sided."""
        return abs(level.gain - gain) > quantile(alpha, level.dof) * self.error(level)

    def is_within(self, level: Level, edge: float, alpha: float) -> bool:
        """Whether the level's gain lies within +-`edge`, by two one-sided tests."""
        return abs(level.gain) + quantile(2 * alpha, level.dof) * self.error(level) < edge


@dataclass(frozen=True, slots=True)
class Prior:
    """A variance and its degrees of freedom; infinitely many where the levels do not differ."""

    variance: float
    dof: float


@dataclass(frozen=True, slots=True)
class Scatter:
    """One level's sum of squares about its mean, without the effect of order. Its degrees of freedom are fractions."""

    level: int
    squares: float
    dof: float

    @property
    def variance(self) -> float:
        return self.squares / self.dof if self.dof > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Group:
    """One level's trials, with their means and the sums of squares about them."""

    level: int
    orders: tuple[int, ...]
    gains: tuple[float, ...]

    @property
    def order(self) -> float:
        return fmean(self.orders)

    @property
    def gain(self) -> float:
        return fmean(self.gains)

    @property
    def order_squares(self) -> float:
        return sum((order - self.order) ** 2 for order in self.orders)

    @property
    def products(self) -> float:
        return sum((o - self.order) * (y - self.gain) for o, y in zip(self.orders, self.gains, strict=True))

    def residual_squares(self, effect: float) -> float:
        mine = zip(self.orders, self.gains, strict=True)
        return sum((y - self.gain - effect * (o - self.order)) ** 2 for o, y in mine)


def quantile(alpha: float, dof: float) -> float:
    """Returns the value that Student's t exceeds in absolute value with probability `alpha`."""
    return float(stdtrit(min(dof, 1e9), 1 - alpha / 2))


def estimate(trials: Sequence[Trial]) -> Estimate | None:
    """Estimates the gains; None where no level was measured twice: a difference may then be chance."""
    groups = [_group(level, trials) for level in sorted({trial.level for trial in trials})]
    loud = {each.level for each in find_loud(_scatter(groups, _median_effect(groups)))}
    quiet = [group for group in groups if group.level not in loud]
    squares = sum(group.order_squares for group in quiet)
    effect = sum(group.products for group in quiet) / squares if squares else 0.0
    # The loud levels have no part in finding the effect of order: each keeps the degrees of freedom of its own pairs.
    own = [
        Scatter(each.level, each.residual_squares(effect), len(each.gains) - 1) for each in groups if each.level in loud
    ]
    scatters = _scatter(quiet, effect)
    pooled = pool(scatters)
    if pooled is None:
        return None
    known = share_variances(scatters, own, pooled)
    levels = tuple(_describe(group, effect, known[group.level]) for group in groups)
    order_variance = pooled.variance / squares if squares else 0.0
    return Estimate(levels, effect, order_variance, math.sqrt(pooled.variance), pooled.dof)


def find_loud(scatters: Sequence[Scatter]) -> list[Scatter]:
    """Returns levels that scatter so much more than all others together that chance does it in one run of fifty.

    If they shared their variance, everything would look uncertain (Phipson and others, Annals of Applied Statistics
    10(2), 2016, have the same aim). So they keep their own. A rarer chance would hardly ever find one: the two pairs
    of a level that is ten times as noisy as the others have a variance whose F test reaches 0.001 in few runs.
    """
    loud: list[Scatter] = []
    known = sorted((each for each in scatters if each.dof > 0), key=lambda each: -each.variance)
    for number, one in enumerate(known):
        others = pool(known[number + 1 :])
        if others is None or len(known) - number <= MIN_QUIET or one.variance <= 0:
            break
        ratio = one.variance / others.variance
        if float(fdtrc(one.dof, others.dof, ratio)) * len(known) > LOUD_ALPHA:
            break
        loud.append(one)
    return loud


def fit_prior(scatters: Sequence[Scatter], pooled: Prior) -> Prior:
    """Fits a prior to mean and variance of log variances; `pooled` where those scatter no more than by chance."""
    known = [each for each in scatters if each.dof > 0 and each.squares > 0]
    if len(known) < 3:
        return pooled
    halves = [each.dof / 2 for each in known]
    logs = [
        math.log(each.variance) - float(digamma(half)) + math.log(half)
        for each, half in zip(known, halves, strict=True)
    ]
    mean, count = fmean(logs), len(logs)
    excess = sum((log - mean) ** 2 for log in logs) / (count - 1) - fmean(float(polygamma(1, half)) for half in halves)
    if excess <= 0:
        return pooled
    half = _inverse_trigamma(excess)
    return Prior(math.exp(mean + float(digamma(half)) - math.log(half)), 2 * half)


def pool(scatters: Sequence[Scatter]) -> Prior | None:
    """Returns one variance for all, with all their degrees of freedom; None if those are fewer than one."""
    total = sum(each.dof for each in scatters)
    if total < 1 - 1e-9:
        return None
    return Prior(max(sum(each.squares for each in scatters) / total, 1e-12), total)


def share_variances(quiet: Sequence[Scatter], loud: Sequence[Scatter], pooled: Prior) -> dict[int, Prior]:
    """Returns each level's variance: moderated, but a loud level's own. `pooled`: the variance of the quiet ones."""
    prior = fit_prior(quiet, Prior(pooled.variance, math.inf))
    known = {each.level: moderate(each, prior, pooled.dof) for each in quiet}
    return known | {each.level: Prior(each.variance, each.dof) for each in loud}


def moderate(scatter: Scatter, prior: Prior, most: float) -> Prior:
    """Draws the level's variance towards the prior. `most`: the degrees of freedom of all levels.

    The prior counts for no more than these: that few levels do not differ by more than chance does not prove them
    alike, and one that scatters more keeps some of its own variance.
    """
    own = min(prior.dof, most)
    dof = own + scatter.dof
    return Prior((own * prior.variance + scatter.squares) / dof, min(dof, most))


def _group(level: int, trials: Sequence[Trial]) -> _Group:
    mine = [trial for trial in trials if trial.level == level]
    return _Group(level, tuple(trial.order for trial in mine), tuple(trial.gain for trial in mine))


def _median_effect(groups: Sequence[_Group]) -> float:
    """Returns the effect of order by the median over levels: a loud level does not move it."""
    slopes = [group.products / group.order_squares for group in groups if group.order_squares]
    return median(slopes) if slopes else 0.0


def _scatter(groups: Sequence[_Group], effect: float) -> list[Scatter]:
    """Returns scatters. A level's dof: its pairs less one for its mean, less its share in the one effect of order."""
    squares = sum(group.order_squares for group in groups)
    return [
        Scatter(
            group.level,
            group.residual_squares(effect),
            max(0.0, len(group.gains) - 1 - (group.order_squares / squares if squares else 0.0)),
        )
        for group in groups
    ]


def _describe(group: _Group, effect: float, known: Prior) -> Level:
    gain = group.gain - effect * group.order
    return Level(group.level, gain, len(group.gains), known.variance, known.dof, group.order)


def _inverse_trigamma(value: float) -> float:
    """Inverts trigamma by Newton's method on 1/trigamma, which is convex (Smyth 2004, appendix)."""
    y = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, y))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, y))
        y += step
        if -step / y < 1e-8:
            break
    return y
