"""From a crossing to a policy: where to go up and where to come back. Pure."""

import math
from dataclasses import dataclass

from loadtest.decide.confidence import hull
from loadtest.decide.crossing import Change

MIN_MARGIN = 0.15


@dataclass(frozen=True, slots=True)
class Threshold:
    up: int
    down: int


def set_threshold(change: Change, least: float = MIN_MARGIN) -> Threshold:
    """Outside the confidence set and outside the margin; never a `down` that no load can reach.

    The margin is the larger of `least` and 1 / sqrt(point), so that a better measurement never narrows the band until
    chance arrivals alone cross it to and fro.
    """
    margin = max(least, 1 / math.sqrt(change.point))
    low, high = hull(change.set)
    down = max(1, math.floor(min(low, change.point * (1 - margin))))
    return Threshold(up=max(down + 1, math.ceil(max(high, change.point * (1 + margin)))), down=down)
