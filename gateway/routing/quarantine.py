"""Requests that may have been the reason why their engines were lost.

They go on one at a time, over all workers of the node, and what is taken for the reason is refused for a while. In:
that a request goes on, has had tokens or has lost two engines, and digests. Knows no backend.
"""

import time
from collections.abc import Callable

from gateway.errors import RequestQuarantined
from gateway.shared import Seat

REFUSED_S = 600.0
MOST_REFUSED = 1024  # digests; the oldest one makes room


class Quarantine:
    """One model's. Unproven is a request that goes on after a loss and has not had enough tokens since; doubtful one
    that has lost two engines with few tokens in between.
    """

    def __init__(self, seat: Seat, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._seat, self._clock = seat.lock, seat.index, clock
        memory = seat.memory
        # Each worker writes its own word of both, and the lock guards the others.
        self._unproven, self._doubtful = memory.ints(seat.workers), memory.ints(seat.workers)
        self._count, self._digests, self._ends = memory.ints(1), memory.ints(MOST_REFUSED), memory.floats(MOST_REFUSED)
        self._last_end = memory.floats(1)  # of the last refusal, for a glance; 0 where there never was one

    def enter(self, *, alone: bool) -> bool:
        """Counts a request as unproven, unless it has to be alone and is not. Returns whether it did."""
        if alone and any(self._unproven):
            return False
        with self._lock:
            may_enter = not (alone and any(self._unproven))
            self._unproven[self._seat] += may_enter
        return may_enter

    def leave(self) -> None:
        """Counts one no more: it has had its tokens, or has ended."""
        self._unproven[self._seat] -= 1

    @property
    def doubtful(self) -> int:
        """How many requests of all workers have lost two engines, and not had enough tokens since."""
        return sum(self._doubtful)

    def doubt(self, change: int) -> None:
        """Counts one more of them, or one less."""
        self._doubtful[self._seat] += change

    def refuse(self, digest: int) -> None:
        """Refuses what has this digest from now on, for REFUSED_S."""
        with self._lock:
            place = self._count[0] % MOST_REFUSED
            self._digests[place] = digest
            self._ends[place] = self._last_end[0] = self._clock() + REFUSED_S
            self._count[0] += 1

    @property
    def refused_at(self) -> float:
        """When something was refused last: it is taken for the reason of what was lost then."""
        return self._last_end[0] - REFUSED_S

    def check(self, digest: Callable[[], int]) -> None:
        """Raises RequestQuarantined for what is refused. While nothing is, nobody's digest is made."""
        if not self._last_end[0] or self._last_end[0] <= (now := self._clock()):
            return
        own, count = digest(), min(self._count[0], MOST_REFUSED)
        if any(each == own and end > now for each, end in zip(self._digests[:count], self._ends[:count], strict=True)):
            raise RequestQuarantined("Two engines were lost with this request: it is refused for ten minutes.")

    def clear(self, worker: int) -> None:
        """Forgets what a dead worker had; what is refused stays so."""
        self._unproven[worker] = self._doubtful[worker] = 0
