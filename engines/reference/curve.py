"""A measured latency curve: time to first token and time per token by the number of requests in the engine.

In: curves.json beside this file, which names its source. Out: seconds, and where two curves cross. No clock.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

CURVES = Path(__file__).with_name("curves.json")
MEASURED_TOKENS = 256  # tokens per answer in the measurements of curves.json


@dataclass(frozen=True, slots=True)
class Level:
    """One measured level: requests in the engine, seconds to the first token, seconds from a token to the next."""

    requests: int
    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Levels in rising order, joined by straight lines over log2(requests); the last line goes on beyond the data."""

    name: str
    levels: tuple[Level, ...]

    def ttft_s(self, requests: float) -> float:
        below, above, share = self._between(requests)
        return below.ttft_s + share * (above.ttft_s - below.ttft_s)

    def itl_s(self, requests: float) -> float:
        below, above, share = self._between(requests)
        return below.itl_s + share * (above.itl_s - below.itl_s)

    def answer_s(self, requests: float, tokens: int) -> float:
        """Seconds for an answer of `tokens` while `requests` are in the engine all the time."""
        return self.ttft_s(requests) + (tokens - 1) * self.itl_s(requests)

    def throughput(self, requests: float, tokens: int) -> float:
        """Tokens per second of a closed loop of `requests` clients."""
        return requests * tokens / self.answer_s(requests, tokens)

    def scaled(self, time_scale: float, answer_tokens: int) -> "Curve":
        """This curve in slow motion, for answers of `answer_tokens`.

        TTFT is scaled with the answer's length, so that it keeps its measured share of an answer's time.
        """
        ttft_scale = time_scale * answer_tokens / MEASURED_TOKENS
        return Curve(
            self.name,
            tuple(Level(lv.requests, lv.ttft_s * ttft_scale, lv.itl_s * time_scale) for lv in self.levels),
        )

    def _between(self, requests: float) -> tuple[Level, Level, float]:
        index = bisect_left(self.levels, requests, key=lambda level: level.requests)
        index = min(max(index, 1), len(self.levels) - 1)
        below, above = self.levels[index - 1], self.levels[index]
        x = math.log2(max(requests, below.requests) / below.requests)
        return below, above, x / math.log2(above.requests / below.requests)


def load_curve(name: str) -> Curve:
    """Loads one of the project's curves, as measured. Raises KeyError if there is none of that name."""
    levels = json.loads(CURVES.read_text())["curves"][name]["levels"]
    return Curve(name, tuple(Level(lv["concurrency"], lv["ttft_p50_s"], lv["itl_p50_ms"] / 1000) for lv in levels))


def true_crossing(low: Curve, high: Curve, tokens: int) -> float:
    """Requests in flight at which both curves give the same throughput for answers of `tokens`.

    Raises ValueError unless they cross exactly once within the levels both have.
    """
    a, b = low.scaled(1.0, tokens), high.scaled(1.0, tokens)

    def gain(x: float) -> float:
        return math.log(a.throughput(2**x, tokens) / b.throughput(2**x, tokens))

    grid = sorted({math.log2(level.requests) for level in (*a.levels, *b.levels)})
    grid = [x for x in grid if 2**x <= min(a.levels[-1].requests, b.levels[-1].requests)]
    brackets = [(x, y) for x, y in pairwise(grid) if (gain(x) > 0) != (gain(y) > 0)]
    if len(brackets) != 1:
        raise ValueError(f"{low.name} and {high.name} cross {len(brackets)} times at {tokens} tokens, not once")
    return float(2 ** _root(gain, *brackets[0]))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    rising = function(low) < 0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) < 0) == rising else (low, middle)
    return (low + high) / 2
