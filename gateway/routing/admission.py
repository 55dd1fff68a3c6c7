"""Who gets a backend now, and who waits: requests that engines have no room for wait in the gateway, within bounds.

In: requests, and a function that places one. Out: leases, each when its request's turn has come. What waits costs no
engine anything, and may still go to either.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from gateway.core import Capacity, Placeable
from gateway.errors import BackendUnavailable, GatewayError
from gateway.flow import ModelFlow
from gateway.routing.ledger import Lease
from gateway.routing.waiting import Ticket, WaitingRoom
from gateway.settings import ModelSettings

UNKNOWN = Capacity(256, math.inf)  # where nothing is known of an engine: vLLM's own bound by default

# Of the room, where others wait, is kept for those that go ahead of them: they would wait for an answer to end.
HELD_BACK = 1 / 16
LEAST_HELD_BACK = 4  # generations that there must be room for

Place: TypeAlias = Callable[[Placeable, Collection[str]], Lease]


class MustWait(Exception):
    """A request has to wait for its turn. `why`: the error that it ends with if that does not come; else Overloaded."""

    def __init__(self, why: BackendUnavailable | None = None) -> None:
        self.why = why


class Admission:
    """One model's. `place`: places a request, or raises MustWait or a GatewayError. `workers` share an engine."""

    def __init__(self, settings: ModelSettings, place: Place, waiting: WaitingRoom, workers: int) -> None:
        self._place = place
        self._waiting = waiting
        self._queue = settings.queue
        self._workers = workers
        backends = settings.backends.items()
        self._limits = {name: (own.max_in_flight, own.max_prefill_tokens) for name, own in backends}
        self._capacities = dict[str, Capacity]()
        self._is_admitting = self._holds_back = False
        self._why: BackendUnavailable | None = None  # why those wait for which any backend will do; None: no room
        self.note_capacities({})

    def note_capacities(self, known: Mapping[str, Capacity | None]) -> None:
        """Notes how much engines take at once by their models; what an operator has set counts more."""
        for name, (in_flight, prefill) in self._limits.items():
            by_model = known.get(name) or UNKNOWN
            self._capacities[name] = Capacity(in_flight or by_model.in_flight, prefill or by_model.prefill_tokens)

    def has_room(self, name: str, in_flight: int, request: Placeable, flow: ModelFlow) -> bool:
        """Whether an engine takes this request beside what it has. One that is idle takes any.

        Of the prompt tokens that may wait there each worker has its share.
        """
        most, prefill = self._capacities[name]
        if self._holds_back and most >= LEAST_HELD_BACK:
            most -= math.ceil(HELD_BACK * most)
        # One with more choices than half of the room waits for half of it: all behind it wait too.
        if in_flight and in_flight + min(request.sequences, most // 2 or 1) > most:
            return False
        if prefill == math.inf:
            return True
        coming = flow.free[name].coming + flow.fixed[name].coming
        return not coming or coming + request.prompt_tokens <= prefill / self._workers

    def wait(self, ticket: Ticket, client: str, tokens: float) -> None:
        """Has a request of so many tokens wait. Raises Overloaded if it cannot be answered in time."""
        self._waiting.join(ticket, client, tokens, self._queue)
        self._admit()

    def note_freed(self) -> None:
        """Notes that an answer has ended, and its lease is closed."""
        self._waiting.note_end()
        if self._waiting.count:
            self._admit()

    def beat(self) -> None:
        """Looks at what other workers have freed, and at who has waited for too long."""
        self._waiting.sample()
        if self._waiting.count:
            self._admit()
            longest_s = self._queue.max_wait_s if self._why is None else self._queue.max_outage_s
            for ticket, overloaded in self._waiting.pop_due(self._queue.max_waiting, longest_s):
                ticket.refuse((ticket.why if ticket.is_picky else self._why) or overloaded)

    def _admit(self) -> None:
        if self._is_admitting:  # what it begins may end at once, and so free a place again
            return
        self._is_admitting = True
        try:
            while self._admit_some():
                pass
            self._waiting.show(is_open=self._why is None)
        finally:
            self._is_admitting = False

    def _admit_some(self) -> bool:
        """Lets those go on whose turn it is. Returns whether there may be more."""
        is_any = False
        for ticket in self._waiting.list_next():
            try:
                lease = self._place_waiting(ticket)
            except MustWait as full:
                ticket.why = full.why
                if not ticket.is_picky:
                    self._why = full.why
            except GatewayError as error:
                self._waiting.leave(ticket)
                ticket.refuse(error)
                is_any = True
            else:
                self._waiting.admit(ticket)
                ticket.admit(lease)
                is_any = True
        return is_any

    def _place_waiting(self, ticket: Ticket) -> Lease:
        self._holds_back = not ticket.goes_ahead
        try:
            return self._place(ticket.request, ticket.avoid)
        finally:
            self._holds_back = False
