"""Engines that share their GPUs: while several work, each slows the others down.

In: how long a step of this engine takes alone. Out: how long steps of the others take. A file that all engines map;
knows no model and no clock.
"""

import mmap
import os
from pathlib import Path

SEATS = 8
BYTES = 8  # of a word
PIDS, STEPS = range(2)  # words of a seat


class SharedGPUs:
    """One engine's place in the file, which is made if there is none. What a dead process wrote does not count.

    Raises OSError for a path that cannot be written.
    """

    def __init__(self, path: Path, seat: int) -> None:
        with path.open("a+b") as file:
            file.truncate(SEATS * 2 * BYTES)
            words = memoryview(mmap.mmap(file.fileno(), SEATS * 2 * BYTES))
        self._pids, self._steps = words.cast("q"), words.cast("d")
        self._seat = 2 * seat
        self.note(0.0)
        self._pids[self._seat + PIDS] = os.getpid()

    def note(self, step_s: float) -> None:
        """Takes the seconds of this engine's longest step under way, alone; 0 while nothing runs."""
        self._steps[self._seat + STEPS] = step_s

    def longest_s(self) -> float:
        """Returns the seconds of the other engines' longest step under way."""
        others = (seat for seat in range(0, 2 * SEATS, 2) if seat != self._seat and self._steps[seat + STEPS])
        return max((self._steps[seat + STEPS] for seat in others if _is_alive(self._pids[seat + PIDS])), default=0.0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
