"""What a run that was broken off has already measured, so that it can be resumed. Pure.

In: the cells of its cells.jsonl, in order. Out: complete pairs, at most one half pair, and the next number of a pair.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.results.cell import Cell, Pair


@dataclass(frozen=True, slots=True)
class HalfPair:
    """A pair whose second cell is missing."""

    pair: Pair
    cell: Cell


@dataclass(frozen=True, slots=True)
class History:
    """`cells`: of complete pairs. `voids`: cells measured again so far."""

    cells: tuple[Cell, ...] = ()
    half: HalfPair | None = None
    voids: int = 0
    next_number: int = 0

    @classmethod
    def of(cls, cells: Sequence[Cell], low: str) -> "History":
        """A pair with a void cell is left out: it was, or will be, measured again under another number."""
        void = {cell.pair for cell in cells if cell.void}
        valid = [cell for cell in cells if cell.pair not in void]
        counts = Counter(cell.pair for cell in valid)
        halves = [_make_half(cell, low) for cell in valid if counts[cell.pair] == 1]
        return cls(
            tuple(cell for cell in valid if counts[cell.pair] == 2),
            halves[-1] if halves else None,
            sum(1 for cell in cells if cell.void),
            max((cell.pair for cell in cells), default=-1) + 1,
        )


def _make_half(cell: Cell, low: str) -> HalfPair:
    return HalfPair(Pair(cell.level, cell.backend == low, cell.pair, cell.is_null), cell)
