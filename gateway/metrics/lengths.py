"""How long recent answers were, and so how much is left of one that has so many tokens: one worker's own.

In: finished answers' tokens. Out: means. Pure; older answers count less and less.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

OCTAVE = 4  # buckets in it
BUCKETS = 24 * OCTAVE
FADING = 0.99  # what one more answer leaves of the weight of those before
HEAVY = 1e12


class LengthTable(NamedTuple):
    """By bucket of length: the summed weight of answers of at least that length, and their summed weighted tokens.

    `weight`, `tokens`, `prompt_tokens`: sums over all recent answers.
    """

    weights: Sequence[float]
    sums: Sequence[float]
    weight: float
    tokens: float
    prompt_tokens: float

    def left(self, tokens: int, most: int) -> float:
        """Returns how many more tokens an answer with so many so far will have, in the mean; never more than `most`."""
        bucket = _find_bucket(tokens) + 1
        if bucket >= BUCKETS or self.weights[bucket] <= 0:
            return most
        return min(max(self.sums[bucket] / self.weights[bucket] - tokens, 1.0), most)


NO_ANSWERS = LengthTable((0.0,) * BUCKETS, (0.0,) * BUCKETS, 0.0, 0.0, 0.0)


class AnswerLengths:
    """The lengths of about the last hundred answers."""

    def __init__(self) -> None:
        self._weights = [0.0] * BUCKETS
        self._sums = [0.0] * BUCKETS
        self._prompts = 0.0
        self._next = 1.0  # weight of the next answer: it grows, which costs less than to let all others shrink

    def add(self, prompt_tokens: int, tokens: int) -> None:
        bucket = _find_bucket(tokens)
        self._weights[bucket] += self._next
        self._sums[bucket] += self._next * tokens
        self._prompts += self._next * prompt_tokens
        self._next /= FADING
        if self._next > HEAVY:
            self._weights = [weight / HEAVY for weight in self._weights]
            self._sums = [total / HEAVY for total in self._sums]
            self._prompts /= HEAVY
            self._next /= HEAVY

    def table(self) -> LengthTable:
        weights, sums = [0.0] * BUCKETS, [0.0] * BUCKETS
        weight = total = 0.0
        for bucket in reversed(range(BUCKETS)):
            weights[bucket] = weight = weight + self._weights[bucket] / self._next
            sums[bucket] = total = total + self._sums[bucket] / self._next
        return LengthTable(weights, sums, weight, total, self._prompts / self._next)


def _find_bucket(tokens: int) -> int:
    return min(int(OCTAVE * math.log2(max(tokens, 1))), BUCKETS - 1)
