"""Turns a crossing into the two bounds of a threshold policy. Pure."""

import math
from dataclasses import dataclass

from loadtest.decide.confidence import hull
from loadtest.decide.crossing import Change


@dataclass(frozen=True, slots=True)
class Threshold:
    """Requests in flight at which the policy changes to the high-load backend (`up`) and back (`down`)."""

    up: int
    down: int


def set_threshold(change: Change, margin: float) -> Threshold:
    """Sets bounds outside the confidence set and at least `margin`, a share, from the crossing; `down` is at least 1.

    The margin is at least 1 / sqrt(point), so that a better measurement never narrows the band until chance arrivals
    alone cross it to and fro.
    """
    margin = max(margin, 1 / math.sqrt(change.point))
    low, high = hull(change.set)
    down = max(1, math.floor(min(low, change.point * (1 - margin))))
    return Threshold(up=max(down + 1, math.ceil(max(high, change.point * (1 + margin)))), down=down)
