"""Random draws from logits, for all rows of a batch at once.

In: logits, a Rule and a fraction in [0, 1) for each row. Out: token ids. `uniforms` makes the fractions from seeds.
Keeps no state, and no row depends on another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.reference.checkpoint import Floats

BLOCK = 32
BELOW_ONE = 1 - 2.0**-40  # times a sum it stays below the sum in float64, so that some running sum lies above


@dataclass(frozen=True)
class Rule:
    """How one row is drawn; `top_k` 0 or -1 is off, as are `top_p` 1 and `min_p` 0."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def draw(logits: Floats, rules: Sequence[Rule], fractions: NDArray[np.float64]) -> NDArray[np.intp]:
    """Applies temperature, min_p, top_k, top_p, in this order; each row's fraction then picks from what is left."""
    scaled = logits / np.array([rule.temperature for rule in rules], np.float32)[:, None]
    filtered = [row for row, rule in enumerate(rules) if rule.top_k > 0 or rule.top_p < 1 or rule.min_p > 0]
    if filtered:
        kept, filters = scaled[filtered], [rules[row] for row in filtered]
        if any(rule.min_p > 0 for rule in filters):
            kept[is_unlikely(kept, filters)] = -np.inf
        kept[kept < smallest_kept(kept, filters)] = -np.inf
        scaled[filtered] = kept
    scaled -= scaled.max(axis=1, keepdims=True)
    return quantile(np.exp(scaled), fractions)


def is_unlikely(logits: Floats, rules: Sequence[Rule]) -> NDArray[np.bool_]:
    """Marks the tokens that are less than min_p times as likely as the likeliest."""
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    unlikely: NDArray[np.bool_] = shares < np.array([rule.min_p for rule in rules], np.float32)[:, None]
    return unlikely


def smallest_kept(logits: Floats, rules: Sequence[Rule]) -> Floats:
    """The least logit that survives top_k, then top_p, [rows, 1]; equal logits survive too, as in vLLM's top_k."""
    vocab_size = logits.shape[1]
    firsts = np.array([vocab_size - rule.top_k if 0 < rule.top_k < vocab_size else 0 for rule in rules])[:, None]
    ascending = np.sort(logits, axis=1)
    weights = np.exp(ascending - ascending[:, -1:])
    weights[np.arange(vocab_size) < firsts] = 0
    # A token stays if the mass up to and including it exceeds 1 - top_p, counted from the least likely one up.
    firsts = quantile(weights, 1 - np.array([rule.top_p for rule in rules]))[:, None]
    return np.take_along_axis(ascending, firsts, axis=1)


def quantile(weights: Floats, fractions: NDArray[np.float64]) -> NDArray[np.intp]:
    """The first index of each row whose running sum exceeds its fraction, in [0, 1], of the whole; never one of weight
    0.

    Sums in two levels of blocks: one running sum over the vocabulary was a step's slowest call, 0.9 ms for 64 x 1,024.
    """
    if added := -weights.shape[1] % BLOCK:
        weights = np.pad(weights, ((0, 0), (0, added)))
    blocks = weights.reshape(len(weights), -1, BLOCK)
    block, fractions = descend(blocks.sum(axis=2), fractions)
    index, _ = descend(blocks[np.arange(len(blocks)), block], fractions)
    return block * BLOCK + index


def descend(weights: Floats, fractions: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Finds the index that `quantile` describes, and the fraction's place within the weight of that index."""
    rows = np.arange(len(weights))
    running = weights.cumsum(axis=1, dtype=np.float64)
    targets = np.minimum(fractions, BELOW_ONE) * running[:, -1]
    index = (running > targets[:, None]).argmax(axis=1)
    return index, np.maximum(1 - (running[rows, index] - targets) / weights[rows, index], 0)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Returns hashes of seed and position in [0, 1) (splitmix64's finalizer, twice). They have no state, so other rows
    change nothing.
    """
    mixed = _mix(np.array(seeds, np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed + np.array(positions, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
