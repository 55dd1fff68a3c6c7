"""The cost of a million generated tokens, by the user's own prices. Pure.

In: a price as the user writes it. Out: money, in the currency of the price.
"""

import re
from dataclasses import dataclass

FORM = re.compile(r"(?:(?P<gpus>\d+)x)?(?P<price>\d+(?:\.\d+)?)(?:@(?P<rate>\d+(?:\.\d+)?))?")
SECONDS_PER_HOUR = 3600
MILLION = 1e6


def parse_price(text: str) -> float:
    """Parses money per million tokens: `1.30`, or `2x2.50@18000` for two GPUs at 2.50 an hour that give 18,000 tok/s.

    Raises ValueError for anything else.
    """
    found = FORM.fullmatch(text)
    if found is None or (found["gpus"] is not None) != (found["rate"] is not None):
        raise ValueError("a price per million tokens like 1.30, or GPUs x price per GPU-hour @ tok/s like 2x2.50@18000")
    price = float(found["price"])
    if found["rate"] is None:
        return price
    rate = float(found["rate"])
    if rate <= 0:
        raise ValueError("tok/s must be above 0")
    return int(found["gpus"]) * price / (rate * SECONDS_PER_HOUR) * MILLION


@dataclass(frozen=True, slots=True)
class Cost:
    """Money per million generated tokens, and per thousand right answers: a model that writes more pays for more."""

    per_million: float
    per_thousand_right: float | None


def count_cost(per_million: float, completion_tokens: int, right: int) -> Cost:
    """Counts the cost of generated answers only: choices generate nothing."""
    spent = per_million * completion_tokens / MILLION
    return Cost(per_million, 1000 * spent / right if right else None)


@dataclass(frozen=True, slots=True)
class Saving:
    """B's saving on a million tokens, per point of score lost, and per point if it lost as many as the interval allows.

    `per_point` is None where no score was lost on the items.
    """

    per_million: float
    per_point: float | None
    at_least: float | None


def count_saving(a: float, b: float, points: float, max_points: float) -> Saving:
    """Finds B's saving from prices per million tokens, points of score lost and the upper end of their interval."""
    saved = a - b
    return Saving(saved, saved / points if points > 0 else None, saved / max_points if max_points > 0 else None)
