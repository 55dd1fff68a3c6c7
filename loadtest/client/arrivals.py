"""When the requests of an open loop are due, independent of the server. Pure.

In: rates and a seed. Out: seconds from the start, rising.
"""

import math
import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["poisson", "constant"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals at `rate` to `last_rate` requests per second, changing in a straight line; Poisson, or evenly spaced."""

    rate: float
    last_rate: float | None = None
    kind: Kind = "poisson"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, rate in (("rate", self.rate), ("last rate", self.last_rate)):
            if rate is not None and not (rate > 0 and math.isfinite(rate)):
                raise ValueError(f"the {name} is a number of requests per second above 0")

    def within(self, seconds: float) -> list[float]:
        """Returns the due times from 0 to `seconds`. Poisson arrivals of a changing rate are those of rate one on the
        scale of the requests expected so far, mapped to time.
        """
        chance = random.Random(self.seed)
        expected = (self.rate + (self.last_rate or self.rate)) / 2 * seconds
        at, due = 0.0, list[float]()
        while True:
            at += chance.expovariate(1.0) if self.kind == "poisson" else 1.0
            if at > expected:
                return due
            due.append(self._when(at, seconds))

    def _when(self, expected: float, seconds: float) -> float:
        """Returns the moment by which `expected` requests are due: the inverse of the rate's integral."""
        slope = ((self.last_rate or self.rate) - self.rate) / seconds
        if not slope:
            return expected / self.rate
        return (math.sqrt(self.rate**2 + 2 * slope * expected) - self.rate) / slope
