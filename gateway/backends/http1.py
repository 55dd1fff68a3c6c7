"""One HTTP/1.1 connection for token streams: a rendered request in, its answer's bytes out by plain calls.

Knows no JSON, no events and no other connection; whose connections these are and when they open is the pool's affair.
"""

import asyncio
from typing import Protocol, cast

import httptools

from gateway.errors import BackendProtocolError, BackendUnavailable, GatewayError


class Receiver(Protocol):
    """Takes one answer: `body` any number of times, then `done` or `lost` once; nothing after `Exchange.abort`."""

    def body(self, status: int, data: bytes) -> None: ...

    def done(self, status: int) -> None: ...

    def lost(self, error: GatewayError) -> None: ...


class Exchange:
    """One request and its answer, from the wish for a connection to the answer's last byte."""

    __slots__ = ("connecting", "connection", "receiver", "request")

    def __init__(self, request: bytes, receiver: Receiver) -> None:
        self.request = request
        self.receiver = receiver
        self.connecting: asyncio.Task[None] | None = None
        self.connection: Connection | None = None

    def abort(self) -> None:
        """Give up at once by closing the connection; idempotent, and harmless when the answer is complete."""
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class Pool(Protocol):
    """Whom a connection tells how it is; `peer` names the server in errors."""

    peer: str
    is_closed: bool

    def parked(self, connection: "Connection") -> None:
        """It has carried an exchange and can carry another."""
        ...

    def closed(self, connection: "Connection") -> None: ...

    def connect(self, exchange: Exchange) -> None:
        """Carry `exchange` on a fresh connection."""
        ...


class Connection(asyncio.Protocol):
    """One TCP connection: idle, or carrying one exchange."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport  # there from connection_made on, which comes before everything else
        self._exchange: Exchange | None = None
        self._is_reused = False
        self._expect_answer()

    def _expect_answer(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._status = 0
        self._has_bytes = False
        self._is_complete = False
        self._may_stay_open = False

    # What the pool does with it.

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def carry(self, exchange: Exchange) -> None:
        """Send the request; its receiver will hear the answer. Only for a connection that is idle."""
        exchange.connection = self
        self._exchange = exchange
        self._transport.write(exchange.request)

    def abort(self) -> None:
        """Close without another word to the receiver."""
        self._exchange = None
        self._transport.abort()

    def close(self) -> None:
        """Close; the receiver, if there is one, hears that its answer is lost."""
        self._transport.abort()

    # What the event loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # nobody asked for these bytes, and the next answer must not begin with them
            return
        self._has_bytes = True
        is_http = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_http = self._may_stay_open = False
        self._hand_on_body(exchange)
        if self._exchange is not exchange:  # its receiver aborted it
            return
        if self._is_complete:
            self._complete(exchange)
        elif not is_http:
            self.abort()
            self._lose(exchange, BackendProtocolError(f"{self._pool.peer} sent something that is not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.closed(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        # A server may close a kept-alive connection just as we write on it (uvicorn does after 5 s idle). Sending the
        # request once more, on a fresh connection, is safe although it is a POST: no byte of an answer had come, so
        # nobody has seen a token; generating changes no state; and had the engine begun, losing us makes it abort.
        if self._is_reused and not self._has_bytes and not self._pool.is_closed:
            exchange.connection = None
            self._pool.connect(exchange)
        else:
            self._lose(exchange, BackendUnavailable(f"{self._pool.peer} closed the connection"))

    # What the parser tells it.

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second answer to one request
            self._may_stay_open = False

    def on_headers_complete(self) -> None:
        if not self._is_complete:
            self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._is_complete:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._status >= 200 and not self._is_complete:  # 1xx only announces the answer
            self._is_complete = True
            self._may_stay_open = self._parser.should_keep_alive()

    # From there to the receiver.

    def _hand_on_body(self, exchange: Exchange) -> None:
        """One call per read, however many HTTP chunks came with it: what follows costs per call."""
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces = []
            exchange.receiver.body(self._status, data)

    def _complete(self, exchange: Exchange) -> None:
        status = self._status
        self._exchange = exchange.connection = None
        if self._may_stay_open:
            self._is_reused = True
            self._expect_answer()
            self._pool.parked(self)
        else:
            self.abort()
        exchange.receiver.done(status)

    @staticmethod
    def _lose(exchange: Exchange, error: GatewayError) -> None:
        exchange.connection = None
        exchange.receiver.lost(error)
