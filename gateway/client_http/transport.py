"""An exchange on a connection of our own: its answer goes past ASGI, straight into the client's transport.

A task switch and two ASGI messages per token cost more than everything else a token does (docs/decisions/0011). Knows
no OpenAI.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol, TypeVar

from gateway.access import Caller
from gateway.client_http.exchange import Listener
from gateway.client_http.head import RequestHead
from gateway.errors import GatewayError
from gateway.header import make_line

LAST_CHUNK = b"0\r\n\r\n"
CRLF: Final = b"\r\n"  # its own: compiled code looks up what another module has, for every token
SIZE_LINES: Final = [b"%x\r\n" % size for size in range(2048)]  # of usual chunks: a look-up takes half of making one
T = TypeVar("T")

CLOSE = b"connection: close"
CLOSE_FIELD = (b"connection", b"close")  # last of a server's default headers: its answers are each connection's last
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
# All that an engine, or a proxy before it, may answer: 520 is in use and in no standard.
STATUS_LINES = {status: b"HTTP/1.1 %d %b" % (status, PHRASES.get(status, b"")) for status in range(200, 600)}


class StallWatch:
    """Disconnects a client that reads no byte for `limit_s` while data waits for it; one for each connection.

    The requests that follow on the connection give the client no more time.
    """

    is_armed = False
    written = 0  # bytes, since the watch last looked

    def __init__(self, transport: asyncio.Transport, limit_s: float) -> None:
        self._transport = transport
        self._limit_s = limit_s
        self._unread = 0  # in the transport's buffer when the watch last looked
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if not self.is_armed:
            self.is_armed = True
            self._wait()

    def disarm(self) -> None:
        self.is_armed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._unread = self._transport.get_write_buffer_size()
        self.written = 0
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look)

    def _look(self) -> None:
        unread = self._transport.get_write_buffer_size()
        if not unread:
            self.disarm()
        elif unread < self._unread + self.written:
            self._wait()
        else:
            self.disarm()
            self._transport.abort()


class Connection(Protocol):
    """A client's connection as its exchanges see it. It calls `lost`, `paused`, `resumed` of the current `exchange`."""

    transport: asyncio.Transport
    client: tuple[str, int] | None
    access_log: bool
    stall: StallWatch
    exchange: "TransportExchange | None"

    @property
    def default_headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    def log(self, exchange: "TransportExchange", status: int) -> None: ...

    def on_response_complete(self) -> None: ...

    def close_after_answer(self) -> None:
        """Closes the connection once the answer has been sent."""
        ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...


class _NoEvent:
    """Stands in for the event that wakes a task of uvicorn's; no task waits here."""

    def set(self) -> None:
        pass


class TransportExchange:
    """An Exchange, from the request's head to the answer's end. To uvicorn it looks like a cycle of its own."""

    method = "POST"
    message_event: ClassVar[_NoEvent] = _NoEvent()
    response_complete = False
    disconnected = False
    more_body = True
    is_queued = False  # behind another request of its connection
    body: bytes | bytearray = b""
    held = 0  # bytes of the body that count as arriving
    error: GatewayError | None = None
    caller: Caller | None = None

    _listener: Listener | None = None
    _unsent_head = b""
    _is_chunked = False
    _is_framed = False

    def __init__(self, connection: Connection, head: RequestHead, *, is_http11: bool, keep_alive: bool) -> None:
        self.head = head
        self.keep_alive = keep_alive
        self.takes_chunks = is_http11
        self._connection = connection
        self._transport = connection.transport
        self._stall = connection.stall

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._connection.spawn(work)

    def attach(self, listener: Listener | None) -> None:
        """Makes this the connection's current exchange. `listener`: called if the client leaves, lags or catches up."""
        self._listener = listener
        self._connection.exchange = self
        if listener is not None and self._stall.is_armed:  # the client has yet to read the answer before (pipelining)
            listener.paused()

    # The answer

    @property
    def client(self) -> str:
        return "" if self._connection.client is None else self._connection.client[0]

    @property
    def has_left(self) -> bool:
        return self.disconnected or self._transport.is_closing()

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        connection = self._connection
        if connection.access_log:
            connection.log(self, status)
        if length is not None:
            framing = b"content-length: %d" % length
        elif self.takes_chunks:
            framing = b"transfer-encoding: chunked"
            self._is_chunked = not is_framed
            self._is_framed = is_framed
        else:  # HTTP/1.0: the connection's end is the body's
            framing = CLOSE
            self.keep_alive = False
        default_headers = connection.default_headers
        if (status >= 400 and CLOSE in lines) or (default_headers and default_headers[-1] == CLOSE_FIELD):
            self.keep_alive = False
        elif not self.keep_alive and framing != CLOSE:
            framing += CRLF + CLOSE
        default_lines = map(make_line, default_headers)
        self._unsent_head = CRLF.join((STATUS_LINES[status], *default_lines, *lines, framing, CRLF))

    def write(self, data: bytes) -> None:
        if self._is_chunked:
            size = len(data)
            data = (SIZE_LINES[size] if size < len(SIZE_LINES) else b"%x\r\n" % size) + data + CRLF
        if self._unsent_head:
            data, self._unsent_head = self._unsent_head + data, b""
        if self._stall.is_armed:
            self._stall.written += len(data)
        try:
            self._transport.write(data)
        except RuntimeError:  # uvloop's for a transport that is closed before its protocol is told
            self.lost()

    def splice(self) -> Callable[[bytes], None]:
        return self._transport.write

    def finish(self, data: bytes = b"") -> None:
        if self._is_chunked or (self._is_framed and data):  # chunks that were passed on had their own end, or had none
            data = b"%x\r\n%b\r\n%b" % (len(data), data, LAST_CHUNK) if data else LAST_CHUNK
            self._is_chunked = False  # it is in chunks now
        if data or self._unsent_head:
            self.write(data)
        self._listener = None
        self.response_complete = True
        if not self.keep_alive:
            self._connection.close_after_answer()
        self._connection.on_response_complete()

    def abort(self) -> None:
        self._listener = None
        self._transport.abort()

    # What the connection calls

    def lost(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.left()

    def paused(self) -> None:
        if self._listener is not None:
            self._listener.paused()

    def resumed(self) -> None:
        if self._listener is not None:
            self._listener.resumed()
