"""The processes that are the node's workers now, a row for each."""

import os
import time
from dataclasses import dataclass

from gateway.restarts import Standing
from gateway.shared.seat import Seat

NOBODY = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A live worker; `started` is Unix seconds."""

    index: int
    pid: int
    started: int


class Roster:
    """The rows of the workers. Each worker writes its own; the supervisor clears it after the worker's end."""

    def __init__(self, seat: Seat) -> None:
        self.index = seat.index  # of this process
        self._board = seat.board
        self._pids, self._starts, self._beats = (seat.memory.ints(seat.workers) for _ in range(3))

    def enter(self) -> None:
        self._starts[self.index] = int(time.time())
        self.beat()
        self._pids[self.index] = os.getpid()

    def beat(self) -> None:
        """Lets the supervisor read that this worker's event loop runs."""
        self._beats[self.index] = time.monotonic_ns()

    def find_silence(self, index: int, since: float) -> float:
        """Returns for how many seconds a worker has not beaten, counted from `since` on, on the monotonic clock."""
        return time.monotonic() - max(self._beats[index] / 1e9, since)

    def standing(self) -> Standing:
        """Returns which generation these workers are, and what became of the last restart."""
        return Standing(os.getpid()) if self._board is None else self._board.read()

    def clear(self, index: int) -> None:
        self._pids[index] = NOBODY

    def read(self) -> tuple[Member, ...]:
        rows = zip(self._pids, self._starts, strict=True)
        return tuple(Member(index, pid, started) for index, (pid, started) in enumerate(rows) if pid != NOBODY)
