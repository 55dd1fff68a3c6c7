"""What a run that was broken off has measured already, so that another can go on where it stopped. Pure.

In: the cells of its cells.jsonl, in order. Out: whole pairs, one half pair at most, and how far numbers have got.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.cell import Cell
from loadtest.plan import Pair


@dataclass(frozen=True, slots=True)
class Half:
    """A pair whose second cell is missing."""

    pair: Pair
    cell: Cell


@dataclass(frozen=True, slots=True)
class History:
    """`cells`: of whole pairs. `voids`: cells measured again so far."""

    cells: tuple[Cell, ...] = ()
    half: Half | None = None
    voids: int = 0
    next_number: int = 0

    @classmethod
    def of(cls, cells: Sequence[Cell], low: str) -> "History":
        """A pair with a void cell is dead: it was, or will be, measured again under another number."""
        dead = {cell.pair for cell in cells if cell.void}
        alive = [cell for cell in cells if cell.pair not in dead]
        counts = {cell.pair: 0 for cell in alive}
        for cell in alive:
            counts[cell.pair] += 1
        halves = [cell for cell in alive if counts[cell.pair] == 1]
        return cls(
            tuple(cell for cell in alive if counts[cell.pair] == 2),
            _make_half(halves[-1], low) if halves else None,
            sum(1 for cell in cells if cell.void),
            max((cell.pair for cell in cells), default=-1) + 1,
        )


def _make_half(cell: Cell, low: str) -> Half:
    return Half(Pair(cell.level, cell.backend == low, cell.pair, cell.is_null), cell)
