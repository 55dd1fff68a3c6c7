"""How much each engine slows the other down, and how well that is known. Pure.

In: step times of rounds that measure low, high, both at once, high, low. Out: for each engine, by how much its step is
longer beside the other, over its own step alone, with an interval from the rounds. An engine's cells lie as far
before as after those of both, so that a steady drift within a round falls out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.decide.estimate import quantile
from loadtest.decide.paired import SURE


@dataclass(frozen=True, slots=True)
class Round:
    """Times of a step in one unit. `low`, `high`: of each engine alone, before and after both worked at once."""

    low: tuple[float, float]
    high: tuple[float, float]
    low_beside: float
    high_beside: float


@dataclass(frozen=True, slots=True)
class Share:
    """A part of an engine's own step, or a difference of two such parts. `error`: its standard error, known with
    `dof` degrees of freedom; None after one round.
    """

    value: float
    error: float | None = None
    dof: float = 0.0

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval that holds it with the probability SURE."""
        if self.error is None:
            return None
        reach = quantile(1 - SURE, self.dof) * self.error
        return self.value - reach, self.value + reach

    def __sub__(self, other: "Share") -> "Share":
        """Returns the difference of two that were measured apart (Welch's t)."""
        difference = self.value - other.value
        if self.error is None or other.error is None:
            return Share(difference)
        squares = [self.error**2, other.error**2]
        spread = squares[0] ** 2 / self.dof + squares[1] ** 2 / other.dof
        dof = sum(squares) ** 2 / spread if spread > 0 else self.dof + other.dof
        return Share(difference, math.sqrt(sum(squares)), dof)


@dataclass(frozen=True, slots=True)
class Interference:
    """`low`: what the low-load engine's step is longer by; `high`: the other's; `mean`: of both, as in a node model."""

    low: Share
    high: Share
    mean: Share


def find_interference(rounds: Sequence[Round]) -> Interference:
    """Finds the interference. Needs one round or more; intervals need two."""
    low_alone, high_alone = [fmean(each.low) for each in rounds], [fmean(each.high) for each in rounds]
    low_extra = [each.low_beside - alone for each, alone in zip(rounds, low_alone, strict=True)]
    high_extra = [each.high_beside - alone for each, alone in zip(rounds, high_alone, strict=True)]
    (low, low_rest), (high, high_rest) = _divide(low_extra, low_alone), _divide(high_extra, high_alone)
    both = [(one + other) / 2 for one, other in zip(low_rest, high_rest, strict=True)]
    return Interference(_make_share(low, low_rest), _make_share(high, high_rest), _make_share((low + high) / 2, both))


def _divide(extra: Sequence[float], step: Sequence[float]) -> tuple[float, Sequence[float]]:
    """Returns the ratio of the sums, and by how much each round is off it (linearized: Cochran, Sampling Techniques,
    1977, section 6.3).
    """
    ratio, mean = sum(extra) / sum(step), fmean(step)
    return ratio, [(more - ratio * own) / mean for more, own in zip(extra, step, strict=True)]


def _make_share(value: float, rest: Sequence[float]) -> Share:
    count = len(rest)
    if count < 2:
        return Share(value)
    return Share(value, math.sqrt(sum(each**2 for each in rest) / (count - 1) / count), count - 1)
