"""A response from its first byte to its last: the only place that knows when an error is a status and when an event.

Bytes come from an attempt (an Answer's frames, or a relayed body) by plain calls and leave by the Outlet in the same
call; the request's task sleeps on one future meanwhile. Knows no tokens.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from gateway.api.client import ClientLeft
from gateway.api.errors import error_body, error_event, error_headers
from gateway.api.outlet import Outlet
from gateway.core import Fields, Route
from gateway.errors import GatewayError

JSON = (b"content-type", b"application/json")
# no-cache and x-accel-buffering: a proxy in between is not to hold tokens back (nginx reads the second).
UNBUFFERED = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Source(Protocol):
    """What an answer comes from, for a reply that has more of it than its client takes."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Reply:
    """One request's response: `open` an attempt, let it write until its `end`; whatever went wrong, `refuse`.

    `clock` gives seconds; `arrived` is when the request came, on it.
    """

    def __init__(self, request_id: str, clock: Callable[[], float]) -> None:
        self.request_id = request_id
        self.arrived = clock()
        self.backend: str | None = None  # of the last attempt
        self.has_begun = False
        self.outlet: Outlet  # there once the client is attached, which comes before any answer
        self.source: Source | None = None
        self.takes_events = False  # an error event may follow what has been written
        self._clock = clock
        self._started = self.arrived
        self._route: Route | None = None
        self.end: asyncio.Future[Exception | None]  # of the attempt under way: None, or what went wrong with it

    # What the spine does with it.

    def open(self, route: Route) -> None:
        """A fresh attempt; an earlier one has begun nothing. Raises ClientLeft."""
        if self.outlet.has_left:
            raise ClientLeft
        self.backend = route.backend
        self._route = route
        self._started = self._clock()
        self.end = asyncio.get_running_loop().create_future()

    def send_json(self, body: bytes, status: int = 200, fields: Fields = ()) -> None:
        self.begin(status, (JSON, *UNBUFFERED, *fields), len(body))
        self.outlet.end(body)

    def refuse(self, error: GatewayError) -> None:
        """By status while nothing has been sent, by an event in a stream, else by breaking off."""
        if not self.has_begun:
            self.send_json(error_body(error), error.status, error_headers(error))
        elif self.takes_events:
            self.outlet.end(error_event(error))
        else:
            self.outlet.cut()

    # What an attempt does with it.

    def begin(self, status: int, fields: Fields, length: int | None, *, is_framed: bool = False) -> None:
        self.has_begun = True
        self.outlet.begin(status, (*fields, *self._own_fields()), length, is_framed=is_framed)

    def settle(self, error: Exception | None = None) -> None:
        """The attempt is over; the first word counts."""
        if self._route is not None and not self.end.done():
            self.end.set_result(error)

    # What the outlet tells it.

    def left(self) -> None:
        self.settle(ClientLeft())

    def paused(self) -> None:
        if self.source is not None:
            self.source.pause()

    def resumed(self) -> None:
        if self.source is not None:
            self.source.resume()

    def _own_fields(self) -> Fields:
        request_id = (b"x-request-id", self.request_id.encode())
        if (route := self._route) is None:
            return (request_id,)
        # W3C Server Timing, in milliseconds: until the request was handed to the engine, and until this.
        own, engine = 1000 * (self._started - self.arrived), 1000 * (self._clock() - self._started)
        timing = f"gateway;dur={own:.2f}, engine;dur={engine:.2f}"
        return request_id, *_name_route(route), (b"server-timing", timing.encode())


@lru_cache(maxsize=4096)
def _name_route(route: Route) -> Fields:
    return (b"x-crossover-backend", route.backend.encode()), (b"x-crossover-reason", route.reason.encode())
