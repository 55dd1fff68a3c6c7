"""The least mean time of an answer that any division of a trace's load between two engines could give.

In: moments of arrival, the engines' steps, their interference. Out: seconds. It is a fluid's: within a window requests
arrive evenly, and each engine has settled, so that in-flight is the rate times the time of an answer (Little's law).
Queues beyond an engine's most in flight, and what changes cost, are left out: policies come near it at best. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadtest.decide.regret import find_windows

SHARES = 101  # of the first engine, from none to all
ROUNDS = 200  # at most, until in-flight has settled
SETTLED = 1e-6

Pair: TypeAlias = tuple[float, float]  # of the two engines


@dataclass(frozen=True, slots=True)
class FluidEngine:
    """`step_s`: seconds of a step by how many are in flight, `max_in_flight` at most."""

    step_s: Callable[[float], float]
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class FluidNode:
    """While both engines work, a step of each takes `interference` times as long more. An answer has `tokens`."""

    engines: tuple[FluidEngine, FluidEngine]
    interference: float
    tokens: int

    def find_optimum(self, arrivals_s: Sequence[float]) -> float:
        """Returns the mean time of an answer, in seconds, with the best division of each window of `arrivals_s`."""
        total_s = 0.0
        for start, end in find_windows(len(arrivals_s)):
            last = min(end, len(arrivals_s) - 1)
            span_s = arrivals_s[last] - arrivals_s[start]
            rate = (last - start) / span_s if span_s > 0 else 0.0
            total_s += (end - start) * self.find_best(rate)
        return total_s / len(arrivals_s)

    def find_best(self, rate: float) -> float:
        """Returns the least mean time of an answer at a steady rate, over the shares of the first engine."""
        shares = (index / (SHARES - 1) for index in range(SHARES))
        return min(self.settle(rate, share) for share in shares)

    def settle(self, rate: float, share: float) -> float:
        """Returns the mean time of an answer where the first engine has such a share of the rate."""
        parts, before = (share, 1 - share), (0.0, 0.0)
        answers_s = self._find_answers_s(parts, before)
        for _ in range(ROUNDS):
            in_flight = self._fill(rate, parts, answers_s)
            if all(abs(now - then) <= SETTLED for now, then in zip(in_flight, before, strict=True)):
                break
            answers_s, before = self._find_answers_s(parts, in_flight), in_flight
        return sum(part * answer_s for part, answer_s in zip(parts, answers_s, strict=True))

    def _find_answers_s(self, parts: Pair, in_flight: Pair) -> Pair:
        first_s, second_s = (
            engine.step_s(count) if part else 0.0
            for engine, part, count in zip(self.engines, parts, in_flight, strict=True)
        )
        return (
            self.tokens * first_s * (1 + self.interference * min(in_flight[1], 1.0)),
            self.tokens * second_s * (1 + self.interference * min(in_flight[0], 1.0)),
        )

    def _fill(self, rate: float, parts: Pair, answers_s: Pair) -> Pair:
        first, second = (
            min(rate * part * answer_s, float(engine.max_in_flight))
            for engine, part, answer_s in zip(self.engines, parts, answers_s, strict=True)
        )
        return first, second
