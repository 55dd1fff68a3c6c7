"""A response from its first byte to its last: the only place that knows when an error is a status and when an event.

Bytes come from an attempt (an Answer's frames, or a relayed body) by plain calls and leave by the Outlet in the same
call. Knows no tokens.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gateway.api.client import ClientLeft
from gateway.api.errors import error_body, error_event, error_headers
from gateway.api.outlet import Outlet
from gateway.core import Route
from gateway.errors import GatewayError
from gateway.header import Fields, make_line

JSON = b"content-type: application/json"
# no-cache and x-accel-buffering: a proxy in between is not to hold tokens back (nginx reads the second).
UNBUFFERED = (b"cache-control: no-cache", b"x-accel-buffering: no")


OnEnd: TypeAlias = Callable[[Exception | None], None]


class Source(Protocol):
    """What an answer comes from, for a reply that has more of it than its client takes."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def fail(self, error: GatewayError) -> None: ...


class Reply:
    """One request's response: `open` an attempt, which writes until it settles; whatever went wrong, `refuse`.

    `clock` gives seconds; `arrived` is when the request came, on it.
    """

    def __init__(self, request_id: str, clock: Callable[[], float]) -> None:
        self.request_id = request_id
        self.arrived = clock()
        self.has_begun = False
        self.takes_events = False  # an error event may follow what has been written
        self.is_held_up = False  # by a client that takes no more at the moment
        self.source: Source | None = None
        self.outlet: Outlet  # there once the client is attached, which comes before any answer
        self._clock = clock
        self._on_end: OnEnd | None = None
        self._route: Route | None = None
        self._started = 0.0

    # What a lane does with it.

    @property
    def was_placed(self) -> bool:
        """Some backend has been asked to answer."""
        return self._route is not None

    def open(self, route: Route, on_end: OnEnd) -> None:
        """A fresh attempt, an earlier one has begun nothing; `on_end` is told once how it ended."""
        self._route = route
        self._started = self._clock()
        self._on_end = on_end

    def send_json(self, body: bytes, status: int = 200, fields: Fields = ()) -> None:
        self.begin(status, (JSON, *UNBUFFERED, *map(make_line, fields)), len(body))
        self.outlet.end(body)

    def refuse(self, error: GatewayError) -> None:
        """By status while nothing has been sent, by an event in a stream, else by breaking off."""
        if not self.has_begun:
            self.send_json(error_body(error), error.status, tuple(error_headers(error)))
        elif self.takes_events:
            self.outlet.end(error_event(error))
        else:
            self.outlet.cut()

    # What an attempt does with it.

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        """`lines` are header fields as they go on the wire."""
        self.has_begun = True
        self.outlet.begin(status, (*lines, self._own_lines()), length, is_framed=is_framed)

    def settle(self, error: Exception | None = None) -> None:
        """The attempt is over; the first word counts."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)

    def close(self) -> None:
        """Nobody waits for the attempt any more."""
        self._on_end = None

    def give_up(self, error: GatewayError) -> None:
        """End the attempt under way with an error of the gateway's own."""
        if self.source is not None:
            self.source.fail(error)
        else:
            self.settle(error)

    # What the outlet tells it.

    def left(self) -> None:
        self.settle(ClientLeft())

    def paused(self) -> None:
        self.is_held_up = True
        if self.source is not None:
            self.source.pause()

    def resumed(self) -> None:
        self.is_held_up = False
        if self.source is not None:
            self.source.resume()

    def _own_lines(self) -> bytes:
        route, started = self._route, self._started
        if route is None:
            return f"x-request-id: {self.request_id}".encode()
        # server-timing is W3C's, in milliseconds: until the request was handed to the engine, and from there to here.
        return (
            f"x-request-id: {self.request_id}\r\nx-crossover-backend: {route.backend}\r\n"
            f"x-crossover-reason: {route.reason}\r\nserver-timing: gateway;dur={1000 * (started - self.arrived):.2f}, "
            f"engine;dur={1000 * (self._clock() - started):.2f}"
        ).encode()
