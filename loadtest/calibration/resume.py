"""What a run that was broken off has already measured, so that it can be resumed. Pure.

In: the cells of its cells.jsonl, in order. Out: complete pairs, at most one half pair, and the next number of a pair.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.results.cell import Cell, Pair


@dataclass(frozen=True, slots=True)
class History:
    """What was measured before. `cells`: the cells of complete pairs. `half`: a pair whose second cell is missing, with
    its first. `voids`: how many cells were measured again so far.
    """

    cells: tuple[Cell, ...] = ()
    half: tuple[Pair, Cell] | None = None
    voids: int = 0
    next_number: int = 0

    @classmethod
    def of(cls, cells: Sequence[Cell], low: str) -> "History":
        """Sorts cells. A pair with a void cell is left out: it was, or will be, measured again under another number."""
        void = {cell.pair for cell in cells if cell.void}
        valid = [cell for cell in cells if cell.pair not in void]
        counts = Counter(cell.pair for cell in valid)
        halves = [cell for cell in valid if counts[cell.pair] == 1]
        return cls(
            tuple(cell for cell in valid if counts[cell.pair] == 2),
            (_find_pair(halves[-1], low), halves[-1]) if halves else None,
            sum(1 for cell in cells if cell.void),
            max((cell.pair for cell in cells), default=-1) + 1,
        )


def _find_pair(cell: Cell, low: str) -> Pair:
    """Returns the pair whose first cell is `cell`."""
    return Pair(cell.level, cell.backend == low, cell.pair, cell.is_null)
