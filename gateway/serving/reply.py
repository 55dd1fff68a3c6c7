"""A response from its first byte to its last: the only place that knows when an error is a status and when an event.

Bytes come from an attempt (the frames of choices, or a relayed body) and leave by the exchange in the same call. Knows
no tokens.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gateway.client_http import Exchange
from gateway.core import Route
from gateway.errors import GatewayError
from gateway.header import make_line
from gateway.wire.errors import ErrorForm, error_headers

JSON = b"content-type: application/json"
# no-cache and x-accel-buffering: a proxy in between is not to hold tokens back (nginx reads the second).
UNBUFFERED = (b"cache-control: no-cache", b"x-accel-buffering: no")
# One format of bytes: compiled, an f-string with floats takes twice the instructions, for every request.
OWN_LINES = (
    b"x-request-id: %b\r\nx-crossover-backend: %b\r\nx-crossover-reason: %b\r\n"
    b"server-timing: gateway;dur=%.2f, engine;dur=%.2f"
)
MOVES = b', moves;desc="%d"'
RATE_LIMIT = b"x-ratelimit-"
QUEUE = b", queue;dur=%.2f"

OnEnd: TypeAlias = Callable[[Exception | None], None]


class Reply:
    """One request's response. An attempt calls `begin`, writes, then calls `finish` or `fail` once.

    `on_end`: called with None when the answer is complete, else with the error. `clock` is in seconds; `arrived`: when
    the request came, on that clock. `route`: where the request was sent last; None while no backend was asked.
    `moves`: how often it has changed backends. `errors`: the form of its wire's errors. `more_lines`: header fields of
    its answer, whichever it is.
    """

    def __init__(
        self,
        exchange: Exchange,
        request_id: str,
        clock: Callable[[], float],
        errors: ErrorForm,
        more_lines: Sequence[bytes] = (),
    ) -> None:
        self.exchange = exchange
        self.request_id = request_id
        self.arrived = clock()
        self.on_end: OnEnd | None = None
        self.route: Route | None = None
        self.moves = 0
        self.has_begun = False
        self.errors = errors
        self.error_event: Callable[[GatewayError], bytes] | None = None  # what may follow what has been written
        self.paused_at: float | None = None  # since when the client reads no more, on `clock`
        self._clock = clock
        self._more_lines = more_lines
        self._started = 0.0
        self._waits_since: float | None = None
        self._waited_s = 0.0
        self._shows_limits = False

    def pause(self) -> None:
        """Notes that the client reads no more at the moment."""
        if self.paused_at is None:
            self.paused_at = self._clock()

    def is_unread(self, for_s: float) -> bool:
        """Whether the client has let bytes lie for so long."""
        return self.paused_at is not None and self._clock() - self.paused_at > for_s

    def wait(self) -> None:
        """Notes that the request waits for a backend from now on, until it is started."""
        self._waits_since = self._clock()

    def start(self, route: Route) -> None:
        """Notes that the request begins at `route`, or goes on there."""
        if self._waits_since is not None:
            self._waited_s += self._clock() - self._waits_since
            self._waits_since = None
        if self.route is None:
            self._started = self._clock()
        else:
            self.moves += 1
        self.route = route

    def show_limits(self, lines: Sequence[bytes]) -> None:
        """Adds header fields to its answer, whichever it is, in place of those of a relayed engine's own limits."""
        self._more_lines = (*self._more_lines, *lines)
        self._shows_limits = bool(lines)

    # An attempt's calls

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        """Begins the response. `lines`: header fields as they go on the wire."""
        self.has_begun = True
        if self._shows_limits:
            lines = [line for line in lines if not line.startswith(RATE_LIMIT)]
        self.exchange.begin(status, (*lines, *self._more_lines, self._own_lines()), length, is_framed=is_framed)

    def finish(self, data: bytes = b"") -> None:
        """Completes the answer with `data`."""
        self.exchange.finish(data)
        if (on_end := self.on_end) is not None:
            on_end(None)

    def fail(self, error: GatewayError) -> None:
        """Ends the failed attempt. `on_end` decides what the client gets."""
        if (on_end := self.on_end) is not None:
            on_end(error)

    # Answers without an attempt

    def send_json(self, body: bytes, status: int = 200, lines: Sequence[bytes] = ()) -> None:
        self.begin(status, (JSON, *UNBUFFERED, *lines), len(body))
        self.exchange.finish(body)

    def send_error(self, error: GatewayError) -> None:
        """Reports the error by status while nothing has been sent, by an event in a stream, else by breaking off."""
        if not self.has_begun:
            self.send_json(
                self.errors.body(error, self.request_id),
                error.status,
                tuple(make_line(field) for field in error_headers(error)),
            )
        elif self.error_event is not None:
            self.exchange.finish(self.error_event(error))
        else:
            self.exchange.abort()

    def _own_lines(self) -> bytes:
        route, started = self.route, self._started
        if route is None:
            return f"x-request-id: {self.request_id}".encode()
        # server-timing is W3C's, in milliseconds: until the request was handed to an engine, and from there to here.
        spent_ms = (1000 * (started - self.arrived), 1000 * (self._clock() - started))
        lines = OWN_LINES % (self.request_id.encode(), route.backend.encode(), route.reason.encode(), *spent_ms)
        if self._waited_s:
            lines += QUEUE % (1000 * self._waited_s)
        return lines + MOVES % self.moves if self.moves else lines
