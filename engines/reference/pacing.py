"""When each token of each request may leave, so that the reference engine is as fast as a measured curve.

In: arrivals, computed tokens, departures and the time. Out: releases in order of their due times. Sans-I/O: it reads
no clock and never sleeps.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from engines.reference.curve import Curve


@dataclass(slots=True)
class _Paced:
    """One admitted request: tokens computed and not yet released, and whether the last of them ends the answer."""

    request_id: str
    ahead: int = 0
    is_complete: bool = False
    overdue_since: float | None = None  # its due time, once that has passed without a computed token


class Neighbours(Protocol):
    """The other engines on the same GPUs: `note` takes this one's step time, `others_s` returns the sum of theirs."""

    def note(self, step_s: float) -> None: ...

    def others_s(self) -> float: ...


class Alone:
    """An engine on GPUs of its own."""

    def note(self, step_s: float) -> None: ...

    def others_s(self) -> float:
        return 0.0


class Pacer:
    """The first token is due TTFT(n) after arrival, each next ITL(n) after the one before was due; n counts the
    requests in the engine at that moment, from admission to the release of the last token.

    Due times follow from due times, never from the time of a call, so lateness and polling do not add up. A token that
    is computed too late leaves as soon as it can and delays no later one. Beyond `capacity`, arrivals wait in order,
    and their time to first token starts when they are admitted. Beside `neighbours` that work, a step takes the time of
    all their steps and its own, and so a first token as many times longer.
    """

    def __init__(self, curve: Curve, capacity: int, neighbours: Neighbours | None = None) -> None:
        self._curve = curve
        self._capacity = capacity
        self._neighbours = neighbours or Alone()
        self._running: dict[str, _Paced] = {}
        self._waiting: deque[str] = deque()
        self._due: list[tuple[float, int, _Paced]] = []  # a heap; entries of requests that left are skipped
        self._order = 0
        self.late = 0

    def __repr__(self) -> str:
        return f"<Pacer {self._curve.name} running={self.running} waiting={self.waiting} late={self.late}>"

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrive(self, request_id: str, now: float) -> None:
        """A request has arrived. Call `advance(now)` first, so that it is counted after what was due before it."""
        if len(self._running) < self._capacity:
            self._admit(request_id, now)
        else:
            self._waiting.append(request_id)

    def computed(self, request_id: str, is_last: bool) -> None:
        """The engine has one more token of a request."""
        paced = self._running[request_id]
        paced.ahead += 1
        paced.is_complete = is_last
        if paced.overdue_since is not None:
            self._schedule(paced, paced.overdue_since)
            paced.overdue_since = None

    def leave(self, request_id: str, now: float) -> None:
        """A request was cancelled; harmless if it has ended."""
        if self._running.pop(request_id, None) is not None:
            self._note_step()
            self._admit_waiting(now)
        elif request_id in self._waiting:
            self._waiting.remove(request_id)

    def advance(self, now: float) -> Iterator[str]:
        """Release what is due by `now`: a request's id once per token, in order of due times. Exhaust the iterator."""
        while self._due and self._due[0][0] <= now:
            due, _, paced = heapq.heappop(self._due)
            if self._running.get(paced.request_id) is not paced:
                continue
            if paced.ahead:
                self._release(paced, due)
                yield paced.request_id
            else:
                paced.overdue_since = due
                self.late += 1

    def next_due(self) -> float:
        """The earliest time at which `advance` has something to do; infinity if only another call can change that."""
        return self._due[0][0] if self._due else math.inf

    def short_of(self, tokens: int) -> list[str]:
        """The admitted, unfinished requests with fewer than `tokens` computed ahead of release."""
        return [paced.request_id for paced in self._running.values() if paced.ahead < tokens and not paced.is_complete]

    def _release(self, paced: _Paced, due: float) -> None:
        paced.ahead -= 1
        if paced.ahead or not paced.is_complete:
            self._schedule(paced, due + self._stretched(self._curve.itl_s(len(self._running))))
        else:
            del self._running[paced.request_id]
            self._note_step()
            self._admit_waiting(due)

    def _admit_waiting(self, now: float) -> None:
        if self._waiting:
            self._admit(self._waiting.popleft(), now)

    def _admit(self, request_id: str, now: float) -> None:
        paced = self._running[request_id] = _Paced(request_id)
        self._note_step()
        self._schedule(paced, now + self._stretched(self._curve.ttft_s(len(self._running))))

    def _note_step(self) -> None:
        self._neighbours.note(self._curve.itl_s(len(self._running)) if self._running else 0.0)

    def _stretched(self, seconds: float) -> float:
        """Returns how long takes what this engine does alone in so many seconds."""
        others_s = self._neighbours.others_s()
        return seconds * (1 + others_s / self._curve.itl_s(len(self._running))) if others_s else seconds

    def _schedule(self, paced: _Paced, due: float) -> None:
        self._order += 1
        heapq.heappush(self._due, (due, self._order, paced))
