"""Requests whose engine was lost before it gave them a token: any of them may have been the reason.

They go on one at a time, over all workers of the node, and what two engines were lost with is refused for a while.
In: that a request goes on or has had a token, and digests. Knows no backend.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from gateway.errors import RequestQuarantined
from gateway.shared import Plan, Seat, Span

REFUSED_S = 600.0
MOST_REFUSED = 1024  # digests; the oldest one makes room


@dataclass(frozen=True, slots=True)
class QuarantineSpans:
    """The spans of one model's. Each worker has a word of `unproven`; the lock guards the others.

    `refused`: how many were refused by now, and until when the last one is.
    """

    unproven: Span
    refused: Span
    digests: Span
    ends: Span

    @classmethod
    def lay(cls, plan: Plan, workers: int) -> Self:
        return cls(plan.words(workers), plan.words(2), plan.words(MOST_REFUSED), plan.words(MOST_REFUSED))


class Quarantine:
    """One model's. Unproven is a request that goes on after a loss and has had no token since.

    `last_end`: when the last refusal ends, for a glance; 0 where there never was one.
    """

    def __init__(self, spans: QuarantineSpans, seat: Seat, clock: Callable[[], float] = time.monotonic) -> None:
        memory = seat.memory
        self._lock, self._seat, self._clock = seat.lock, seat.index, clock
        self._unproven = memory.ints(spans.unproven)
        self._count = memory.ints(spans.refused)[:1]
        self.last_end = memory.floats(spans.refused)[1:]
        self._digests = memory.ints(spans.digests)
        self._ends = memory.floats(spans.ends)

    def enter(self, *, alone: bool) -> bool:
        """Counts a request as unproven, unless it has to be alone and there is another one on the node. Returns whether
        it did.
        """
        if alone and any(self._unproven):
            return False
        with self._lock:
            may_enter = not (alone and any(self._unproven))
            self._unproven[self._seat] += may_enter
        return may_enter

    def leave(self) -> None:
        """Counts one no more: it has had a token, or has ended."""
        self._unproven[self._seat] -= 1

    def refuse(self, digest: int) -> None:
        """Refuses what has this digest from now on, for REFUSED_S."""
        with self._lock:
            place = self._count[0] % MOST_REFUSED
            self._digests[place] = digest
            self._ends[place] = self.last_end[0] = self._clock() + REFUSED_S
            self._count[0] += 1

    def check(self, digest: Callable[[], int]) -> None:
        """Raises RequestQuarantined for what is refused. While nothing is, nobody's digest is made."""
        now = self._clock()
        if self.last_end[0] > now:
            used = min(self._count[0], MOST_REFUSED)
            found = zip(self._digests[:used], self._ends[:used], strict=True)
            own = digest()
            if any(each == own and end > now for each, end in found):
                raise RequestQuarantined(
                    "Two engines were lost with this request. It is refused for ten minutes after the second one."
                )

    def clear(self, worker: int) -> None:
        """Forgets what a dead worker had; what is refused stays so."""
        self._unproven[worker] = 0
