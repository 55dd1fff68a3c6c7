"""The index arrays of one forward pass: chunks of sequences as rows for linear layers and as spans for attention.

In: chunks. Out: arrays, built once a step and shared by all layers. Knows no weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.reference.checkpoint import Floats

FEW_ROWS = 6  # up to here the linear layers go row by row, see model.linear


class Chunk(NamedTuple):
    """Tokens of one sequence that enter at position `start` of its slot: a piece of a prompt, or one new token.

    `is_scored`: logits are wanted after each of its tokens, not after the last one alone.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    is_scored: bool = False


@dataclass(frozen=True)
class Span:
    """Rows that attend together: chunks of equal size in consecutive slots.

    `length`: positions to read. `bias`: [slots, 1, tokens * group, length], 0 or -inf; None hides nothing.
    """

    rows: slice
    slots: slice
    tokens: int
    length: int
    bias: Floats | None


class Plan:
    """Index arrays by row (`token_ids`, `slots`, `positions`), the rows whose logits are wanted, and the spans.

    `ends`: each chunk's last row, then the `inner` rows of scored chunks. It and `token_ids` are padded with rows whose
    results are not read, see padded.
    """

    def __init__(self, chunks: Sequence[Chunk], group: int) -> None:
        sizes = np.array([len(chunk.token_ids) for chunk in chunks])
        firsts = np.cumsum(sizes) - sizes
        starts = np.array([chunk.start for chunk in chunks])
        self.rows = int(sizes.sum())
        self.token_ids = padded([token_id for chunk in chunks for token_id in chunk.token_ids])
        ends = (firsts + sizes - 1).tolist()
        inner = [
            row
            for chunk, end in zip(chunks, ends, strict=True)
            if chunk.is_scored
            for row in range(end + 1 - len(chunk.token_ids), end)
        ]
        self.inner = len(inner)
        self.ends = padded(ends + inner)
        self.slots = np.repeat([chunk.slot for chunk in chunks], sizes)
        self.positions = np.arange(self.rows) + np.repeat(starts - firsts, sizes)
        self.spans = [self._span(chunks, first, last, group) for first, last in neighbours(chunks)]

    def _span(self, chunks: Sequence[Chunk], first: int, last: int, group: int) -> Span:
        tokens, slot = len(chunks[first].token_ids), chunks[first].slot
        rows = slice(int(self.ends[first]) + 1 - tokens, int(self.ends[last]) + 1)
        positions = self.positions[rows]
        length = int(positions.max()) + 1
        slots = slice(slot, slot + last - first + 1)
        return Span(rows, slots, tokens, length, causal_bias(positions.reshape(-1, tokens), length, group))


def padded(rows: Sequence[int]) -> NDArray[np.intp]:
    """Appends zeros up to a multiple of 4: OpenBLAS takes a third less time for 8 rows than for 7."""
    added = -len(rows) % 4 if len(rows) > FEW_ROWS else 0
    return np.array([*rows, *(0,) * added])


def neighbours(chunks: Sequence[Chunk]) -> Iterator[tuple[int, int]]:
    """First and last index of each run of one-token chunks in consecutive slots; a longer chunk is a run by itself."""
    first = 0
    for index, chunk in enumerate(chunks):
        following = chunks[index + 1] if index + 1 < len(chunks) else None
        is_joined = (
            following is not None
            and len(chunk.token_ids) == len(following.token_ids) == 1
            and following.slot == chunk.slot + 1
        )
        if not is_joined:
            yield first, index
            first = index + 1


def causal_bias(positions: NDArray[np.intp], length: int, group: int) -> Floats | None:
    """Hides the positions after each query: `positions` is [slots, tokens], a token's `group` heads have a row each."""
    if positions.size == 1:
        return None
    is_hidden = np.arange(length) > np.repeat(positions, group if positions.shape[1] > 1 else 1, axis=1)[..., None]
    return np.where(is_hidden, np.float32(-np.inf), np.float32(0))[:, None]
