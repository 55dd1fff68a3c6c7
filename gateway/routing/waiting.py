"""Requests for which no engine has room, in the order in which they go on: by priority, and within it fairly.

In: a request, who sent it and what it costs. Out: whose turn it is, over all workers of the node; or the error of one
that cannot be answered in time. Knows no backend.

Fair is by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a client's request begins, in virtual time,
where the client's one before has ended, or now; who begins first goes first. Its cost is its tokens.
"""

import heapq
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from zlib import crc32

from gateway.core import Placeable
from gateway.errors import GatewayError, Overloaded
from gateway.settings import QueueSettings
from gateway.shared import Seat

CLIENTS = 1024  # words for what clients have used of a priority; two share one by chance
FIRST, LAST = -8, 7  # priorities beyond count as these
PRIORITIES = LAST - FIRST + 1  # each has a virtual time of its own, or those that pass others would move it ahead
HEAD = 5  # words of a worker: whether it has one that could go on now, its rank, and when that was written
STALE_S = 0.2  # after which the first one of a worker that does not beat holds up none of its own priority
HUNG_S = 1.0  # and nobody: a worker whose processor others use beats late, and what it has of a high priority must not
# lose its turn by that
SAMPLED = 64  # of those that wait are looked at to predict a wait
RATE_S = 5.0  # over which answers that end are counted
MOST_RETRY_S = 120

Rank: TypeAlias = tuple[float, ...]  # priority, the start in virtual time, when it came


class Ticket:
    """A request that waits. `admit` is called with its lease when its turn has come, `refuse` with why it will not.

    It may be picky: only some backends will do for it, and nobody waits behind it. `goes_ahead`: it passes others that
    wait, by its priority or because its client has none among them. `why`: what it waits for, if that is no room.
    """

    def __init__(
        self,
        request: Placeable,
        avoid: frozenset[str],
        admit: Callable[[Any], None],  # Any: of a lease, which is nothing to a waiting room
        refuse: Callable[[GatewayError], None],
    ) -> None:
        self.request = request
        self.avoid = avoid
        self.admit = admit
        self.refuse = refuse
        self.is_picky = bool(request.needs)
        self.is_over = True  # until it joins
        self.goes_ahead = False
        self.why: GatewayError | None = None
        self.client = 0
        self.cost = 0.0
        self.rank: Rank = ()

    def __lt__(self, other: "Ticket") -> bool:
        return self.rank < other.rank


class WaitingRoom:
    """This worker's part of a model's queue. `count`: how many wait here."""

    def __init__(self, seat: Seat, clock: Callable[[], float] = time.monotonic) -> None:
        memory = seat.memory
        self.count = 0
        self._seat, self._workers = seat.index, seat.workers
        self._clock = clock
        self._tickets: list[Ticket] = []  # a heap; those that are over leave it later
        # Each worker has words of its own; what clients have used is everyone's.
        self._counts, self._ended = memory.ints(seat.workers), memory.ints(seat.workers)
        self._heads = [memory.floats(HEAD) for _ in range(seat.workers)]
        self._used, self._times = memory.floats(CLIENTS), memory.floats(PRIORITIES)
        self._last: Ticket | None = None  # in order
        self._ends: deque[tuple[float, int]] = deque()  # samples of how many have ended

    def __repr__(self) -> str:
        return f"<WaitingRoom {self.count} of {self.total}>"

    @property
    def total(self) -> int:
        """How many wait in all workers."""
        return sum(self._counts)

    def is_contended(self) -> bool:
        """Whether anybody waits who could go on, as soon as there is room."""
        return self.count > 0 or (self._workers > 1 and any(self._counts) and any(self._list_rivals(HUNG_S)))

    def note_end(self) -> None:
        """Notes that an answer has ended."""
        self._ended[self._seat] += 1

    def join(self, ticket: Ticket, client: str, tokens: float, settings: QueueSettings) -> None:
        """Takes a request in. Raises Overloaded if it would wait too long, or the queue is full of others before it."""
        now, priority = self._clock(), min(max(ticket.request.priority, FIRST), LAST)
        place = crc32(f"{client} {priority}".encode()) % CLIENTS
        turn = self._times[priority - FIRST]
        start = max(turn, self._used[place])
        ticket.goes_ahead = priority < 0 or (start == turn and self.is_contended())
        ticket.client, ticket.cost = place, tokens
        ticket.rank = (priority, start, now)
        if self._predict_s(ticket) > settings.max_wait_s or not settings.max_wait_s:
            raise self._make_refusal("The model's engines are full; this request would wait too long.")
        if self.total >= settings.max_waiting:
            self._make_room(ticket, settings.max_waiting)
        self._used[place] = start + tokens
        ticket.is_over = False
        heapq.heappush(self._tickets, ticket)
        if self._last is not None and self._last < ticket:
            self._last = ticket
        self._recount(1)

    def leave(self, ticket: Ticket) -> None:
        """Takes out one that was not served.

        Only a client's last one gives back its turn: else its later requests would pass its earlier ones.
        """
        if not ticket.is_over:
            if self._used[ticket.client] == ticket.rank[1] + ticket.cost:
                self._used[ticket.client] = ticket.rank[1]
            self._drop(ticket)

    def admit(self, ticket: Ticket) -> None:
        """Takes out one whose turn has come."""
        place = int(ticket.rank[0]) - FIRST
        self._times[place] = max(self._times[place], ticket.rank[1])
        self._drop(ticket)

    def list_next(self) -> Iterator[Ticket]:
        """Yields those whose turn it may be, the first one first: one that is not picky, and the picky before it.

        None while another worker has one before all of this one's.
        """
        self._tidy()
        if not self._tickets:
            return
        if not self._tickets[0].is_picky:
            if not self._is_behind(self._tickets[0]):
                yield self._tickets[0]
            return
        for ticket in sorted(self._tickets):
            if not ticket.is_over and (ticket.is_picky or not self._is_behind(ticket)):
                yield ticket
            if not ticket.is_picky:
                return

    def pop_due(self, most: int, longest_s: float) -> Iterator[tuple[Ticket, Overloaded]]:
        """Takes out those that have waited for so long, and the last ones of those beyond `most`; yields each with
        its error.
        """
        since = self._clock() - longest_s
        while self.total > most and self.count > most / self._workers and (last := self._find_last()) is not None:
            self.leave(last)
            yield last, self._make_refusal("The queue of the model is full.")
        for ticket in [each for each in self._tickets if not each.is_over and each.rank[-1] <= since]:
            self.leave(ticket)
            yield ticket, self._make_refusal("No engine had room for this request in time.")

    def sample(self) -> None:
        """Counts what has ended, once a beat."""
        now = self._clock()
        if not self.total:  # how many end while nobody waits shows how many come, not how many engines can answer
            self._ends.clear()
        self._ends.append((now, sum(self._ended)))
        while len(self._ends) > 2 and self._ends[1][0] < now - RATE_S:
            self._ends.popleft()

    def clear(self, worker: int) -> None:
        """Forgets what a dead worker had."""
        self._counts[worker] = 0
        self._heads[worker][0] = 0.0

    def show(self, *, is_open: bool) -> None:
        """Lets the other workers know the first one that waits here; none if it could not go on anywhere."""
        self._tidy()
        head = self._heads[self._seat]
        first = self._tickets[0] if self._tickets else None
        if first is not None and first.is_picky:
            first = min((each for each in self._tickets if not (each.is_over or each.is_picky)), default=None)
        head[0] = 0.0  # while its rank changes it is nobody's
        if first is not None and is_open:
            head[1:] = memoryview(array("d", (*first.rank, self._clock())))
            head[0] = 1.0

    def _drop(self, ticket: Ticket) -> None:
        ticket.is_over = True
        self._recount(-1)
        if len(self._tickets) > 2 * self.count + 16:  # clients that come and leave at once
            self._tickets = [each for each in self._tickets if not each.is_over]
            heapq.heapify(self._tickets)

    def _recount(self, change: int) -> None:
        self.count += change
        self._counts[self._seat] = self.count
        if not self.is_contended():  # all clients begin anew
            self._times[:] = memoryview(array("d", [max(self._used)] * PRIORITIES))
        self.show(is_open=True)

    def _tidy(self) -> None:
        while self._tickets and self._tickets[0].is_over:
            heapq.heappop(self._tickets)

    def _is_behind(self, ticket: Ticket) -> bool:
        """Whether another worker has one that goes first."""
        if any(rank < ticket.rank for rank in self._list_rivals(STALE_S)):
            return True
        return any(rank[0] < ticket.rank[0] for rank in self._list_rivals(HUNG_S))

    def _list_rivals(self, age_s: float) -> Iterator[Rank]:
        """Yields the ranks of the first ones of other workers that have beaten within `age_s`."""
        since = self._clock() - age_s
        for worker, head in enumerate(self._heads):
            if worker != self._seat and head[0] and head[-1] > since:
                yield tuple(head[1:-1])

    def _make_room(self, ticket: Ticket, most: int) -> None:
        """Refuses the last one that waits here, if it comes after this one; else raises Overloaded.

        Where most wait in other workers, one that goes ahead of them comes in: their beats refuse their last.
        """
        if ticket.goes_ahead and self.count < most / self._workers:
            return
        refusal = self._make_refusal("The queue of the model is full.")
        last = self._find_last()
        if last is not None and ticket < last:
            self.leave(last)
            last.refuse(refusal)
        else:
            raise refusal

    def _find_last(self) -> Ticket | None:
        if self._last is None or self._last.is_over:
            self._last = max((each for each in self._tickets if not each.is_over), default=None)
        return self._last

    def _find_rate(self) -> float:
        """Returns how many answers ended a second, of late; 0: unknown."""
        if len(self._ends) < 2 or self._ends[-1][0] - self._ends[0][0] < 1.0:
            return 0.0
        (began, before), (ended, after) = self._ends[0], self._ends[-1]
        return (after - before) / (ended - began)

    def _predict_s(self, ticket: Ticket) -> float:
        """Returns how long it would wait, as far as is known."""
        rate, total = self._find_rate(), self.total
        if not rate or not total:
            return 0.0
        if self.count:
            sample = [each for each in self._tickets[:: len(self._tickets) // SAMPLED + 1] if not each.is_over]
            before = sum(each < ticket for each in sample) / max(len(sample), 1)
        else:
            before = float(self._is_behind(ticket))
        return (before * total + 1) / rate

    def _make_refusal(self, message: str) -> Overloaded:
        rate = self._find_rate()
        retry_s = math.ceil(self.total / rate) if rate else 1
        return Overloaded(message, retry_after_s=min(max(retry_s, 1), MOST_RETRY_S))
