"""One HTTP/1.1 connection to an engine: a rendered request in, its answer out by plain calls.

Both lanes read here. The token lane gets the payload; the relay lane gets the body with its framing unchanged, and its
whole chunks bypass the receiver. Knows no JSON and no other connection, and of events only their end. The pool owns the
connections and decides when they open.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, cast

from gateway.backends.http1_framing import LF, Body, Chunked, Head, NotHTTP, measure_size_line, split_head
from gateway.backends.sse import END_OF_EVENT
from gateway.errors import BackendProtocolError, BackendUnavailable, GatewayError

# [DONE] and the last chunk are shorter reads than this; they must not replace the kept read that holds the usage.
SHORT_READ_BYTES: Final = 64

# The rest of one read waits for the next turn of the loop: 256 kB in the smallest chunks take 60 ms, and libuv reads a
# socket that always has more 32 times before it looks at another.
PORTION_BYTES: Final = 16 * 1024
CLOSES_S: Final = 0.1  # after we wrote on it, a server that had closed an idle connection has reported that
MAX_INTERIM = 16  # answers of status 1xx before the final one

Deliver: TypeAlias = Callable[[bytes], None]


class Receiver(Protocol):
    """Receives one answer.

    Either `receive_answer`; or `receive_head` once, its body, then `exchange_finished`; or `exchange_failed` at any
    point. Nothing is called after `Exchange.abort`.
    """

    def receive_answer(self, head: Head, data: bytes) -> None:
        """Receives a whole answer that arrived in one read; `data` is its body."""
        ...

    def receive_head(self, head: Head, length: int | None) -> Deliver:
        """Returns the function that receives the body: one call per read, however many chunks are in it.

        `length`: the body's length, if the head declares it.
        """
        ...

    def exchange_finished(self) -> None: ...

    def exchange_failed(self, error: GatewayError) -> None: ...


def _discard(_: bytes) -> None:
    pass


def _count_events(chunk: bytes, start: int) -> int:
    """Counts the ends of events in a whole chunk whose payload begins at `start`.

    There is one, unless a line ends before the last two line ends.
    """
    if chunk[-3] == LF == chunk[-4] and LF not in chunk[start:-4]:
        return 1
    return chunk.count(END_OF_EVENT)


class Splice:
    """Receives whole chunks instead of the Receiver: passes them to `write`, counts events, keeps the last two reads.

    `write_failed` is called when `write` raises RuntimeError. This is a base class and no Protocol, since that makes
    attribute access faster.
    """

    def __init__(self) -> None:
        self.write: Deliver = _discard
        self.events = 0
        self.kept = b""
        self.kept_before = b""

    def write_failed(self) -> None:
        raise NotImplementedError


class Exchange:
    """One request and its answer, from before the connection is made to the answer's last byte.

    `takes_framing`: the receiver wants the body with its chunk framing; it sets this before `receive_head` returns.
    `splice`: set when the receiver has begun to pass that body on; it then receives each chunk that arrives alone.
    `was_sent`: on a connection that was lost then; it may be the reason.
    """

    def __init__(self, request: bytes, receiver: Receiver) -> None:
        self.request = request
        self.receiver = receiver
        self.takes_framing = False
        self.splice: Splice | None = None
        self.is_paused = self.was_sent = False
        self.connecting: asyncio.Task[None] | None = None
        self.connection: Connection | None = None

    def abort(self) -> None:
        """Close the connection at once; idempotent, and harmless when the answer is complete."""
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def pause(self) -> None:
        """Stop reading the answer; the engine has to wait when the sockets in between are full."""
        self.is_paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self.connection is not None:
            self.connection.resume()


class Pool(Protocol):
    """The owner of connections. `peer` names the server in errors."""

    peer: str
    is_closed: bool

    def became_idle(self, connection: "Connection") -> None:
        """Takes back a connection that has carried an exchange and can carry another."""
        ...

    def closed(self, connection: "Connection") -> None: ...

    def connect(self, exchange: Exchange) -> None:
        """Open a fresh connection for `exchange`."""
        ...


class Connection:
    """One connection, by TCP or through a socket in the file system: idle, or carrying one exchange.

    It is made for the exchange `first`; `sent` bytes of that request are already sent. It is an asyncio.Protocol but
    does not inherit from it, because it is compiled, as LiveCall is.
    """

    def __init__(self, pool: Pool, first: Exchange, sent: int) -> None:
        self._pool = pool
        self._first: Exchange | None = first
        self._sent = sent
        self._transport: asyncio.Transport  # set by connection_made, which is called before everything else
        self._exchange: Exchange | None = None
        self._is_reused = False
        self._carries_since = 0.0
        self._is_paused = False
        self._partial_head = b""
        self._interim = 0  # how many answers of status 1xx have arrived
        self._body: Body | None = None  # None until the head has arrived
        self._keeps_framing = False  # the receiver gets the body with its chunk framing
        self._deliver: Deliver = _discard  # receives the body
        # Set while the next byte is the first of a chunk. One receives a chunk's payload, the other a whole chunk.
        self._deliver_chunk: Deliver | None = None
        self._splice: Splice | None = None
        self._may_stay_open = False
        self._backlog = b""  # data that is received but not parsed; the socket is not read meanwhile
        self._is_draining = False

    # Called by the pool and the exchange.

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def carry(self, exchange: Exchange) -> None:
        """Sends the request on this connection, which must be idle; the receiver gets the answer."""
        self._carries_since = time.monotonic()
        self._begin_with(exchange, 0)
        self.apply_pause()

    def apply_pause(self) -> None:
        """Pause reading if the exchange is paused."""
        if self._exchange is not None and self._exchange.is_paused:
            self.pause()

    def abort(self) -> None:
        """Close without calling the receiver."""
        self._exchange = self._deliver_chunk = self._splice = None
        self._deliver = _discard
        self._backlog = b""
        self._transport.abort()

    def close(self) -> None:
        """Close; the exchange, if there is one, fails."""
        self._transport.abort()

    def pause(self) -> None:
        if not self._is_paused and self.is_open:
            self._is_paused = True
            if not self._is_draining:
                self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and self.is_open:
            self._is_paused = False
            if not self._is_draining:
                self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class does not inherit from it
        if (first := self._first) is not None:
            self._first = None
            if first.connecting is None:  # it was aborted
                self.abort()
            else:
                self._begin_with(first, self._sent)  # apply_pause comes later: uvloop starts to read after this call

    def data_received(self, data: bytes) -> None:
        # Nearly every read of a token is one whole chunk, so every step here is a cost per token.
        if (splice := self._splice) is not None:
            if len(data) >= SHORT_READ_BYTES and (start := measure_size_line(data)):
                splice.events += _count_events(data, start)
                splice.kept_before, splice.kept = splice.kept, data
                try:
                    splice.write(data)
                except RuntimeError:
                    splice.write_failed()
                return
        elif (deliver := self._deliver_chunk) is not None and (start := measure_size_line(data)):
            deliver(data[start:-2])
            return
        self._read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._backlog and self._exchange is not None:  # this data arrived before the end
            data, self._backlog = self._backlog[:PORTION_BYTES], self._backlog[PORTION_BYTES:]
            self._read(data)
        self._pool.closed(self)
        exchange, self._exchange, self._deliver_chunk, self._splice = self._exchange, None, None, None
        self._deliver = _discard
        if exchange is None:
            return
        if self._body is not None and self._body.ends_with_connection and exc is None:
            self._finish(exchange)
        # A server may close a kept-alive connection just as we write on it (uvicorn does after 5 s idle). It is safe to
        # send the request again on a fresh connection, although it is a POST: no byte of an answer has arrived, so no
        # client has a token; generating changes no state; and an engine that had begun aborts when it loses us. Later
        # it is an engine that has died, maybe of this request.
        elif self._may_send_again():
            exchange.connection, exchange.was_sent = None, True
            self._pool.connect(exchange)
        else:
            self._fail(exchange, BackendUnavailable(f"{self._pool.peer} closed the connection"))

    def _may_send_again(self) -> bool:
        is_early = self._is_reused and time.monotonic() - self._carries_since < CLOSES_S
        return is_early and self._body is None and not self._partial_head and not self._pool.is_closed

    def eof_received(self) -> None:
        """Returns None, so that the transport closes itself."""

    def pause_writing(self) -> None:
        """Does nothing: a request is written in one piece."""

    def resume_writing(self) -> None:
        """Does nothing, as `pause_writing`."""

    # From the socket's data to the receiver.

    def _begin_with(self, exchange: Exchange, sent: int) -> None:
        exchange.connecting = None  # from here on, Exchange.abort aborts this connection
        exchange.connection = self
        self._exchange = exchange
        if rest := exchange.request[sent:]:
            self._transport.write(rest)

    def _read(self, data: bytes) -> None:
        if len(data) > PORTION_BYTES:
            data = self._keep_backlog(data)
        exchange, self._deliver_chunk, self._splice = self._exchange, None, None
        if exchange is None:
            self.abort()  # no request asked for these bytes, and the next answer must not begin with them
            return
        try:
            if self._body is None:
                self._read_head(exchange, data)
            else:
                self._read_body(exchange, self._body, data)
        except NotHTTP:
            if self._exchange is exchange:
                self.abort()
                self._fail(exchange, BackendProtocolError(f"{self._pool.peer} sent something that is not HTTP"))

    def _keep_backlog(self, data: bytes) -> bytes:
        """Returns a portion of `data`. Keeps the rest until the loop's next turn; the socket is not read meanwhile."""
        self._backlog = data[PORTION_BYTES:]
        if not self._is_draining:
            self._is_draining = True
            if not self._is_paused:
                self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_backlog)
        return data[:PORTION_BYTES]

    def _read_backlog(self) -> None:
        data, self._backlog = self._backlog, b""
        if data:
            self._read(data)
        if not self._backlog and self._is_draining:
            self._is_draining = False
            if not self._is_paused and self.is_open:
                self._transport.resume_reading()

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        if self._partial_head:
            data = self._partial_head + data
        while (split := split_head(data)) is not None:
            head, length, data = split
            if head.status < 200:  # an interim answer
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise NotHTTP("interim answers without an end")
            else:
                self._partial_head = b""
                self._interim = 0
                if length == len(data):
                    self._release(exchange, head.keeps_open)
                    exchange.receiver.receive_answer(head, data)
                else:
                    self._begin(exchange, head, length, data)
                return
        self._partial_head = data

    def _begin(self, exchange: Exchange, head: Head, length: int | None, rest: bytes) -> None:
        deliver = exchange.receiver.receive_head(head, length)
        if self._exchange is not exchange:  # the receiver has aborted it
            return
        self._deliver = deliver
        self._body = body = head.body(length)
        self._may_stay_open = head.keeps_open and not body.ends_with_connection
        self._keeps_framing = exchange.takes_framing and head.is_chunked
        if head.is_chunked and head.sends_at_once:
            self._acknowledge_late()
        if rest:
            self._read_body(exchange, body, rest)

    def _acknowledge_late(self) -> None:
        """Have a token's segment acknowledged together with the next, which halves the packets sent to the engine.

        It does not suit every server: one that waits for acknowledgements before it sends would lose 40 ms a token.
        """
        connection = self._transport.get_extra_info("socket")
        is_tcp = connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}
        if is_tcp and hasattr(socket, "TCP_QUICKACK"):  # Linux has it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)

    def _read_body(self, exchange: Exchange, body: Body, data: bytes) -> None:
        used = self._pass_on(body, data)
        if body.is_complete:
            self._complete(exchange, has_surplus=used != len(data))
        elif self._exchange is exchange and isinstance(body, Chunked) and body.is_between_chunks:
            if not self._keeps_framing:
                self._deliver_chunk = self._deliver
            else:
                self._splice = exchange.splice

    def _pass_on(self, body: Body, data: bytes) -> int:
        if self._keeps_framing and isinstance(body, Chunked):
            used = body.skip(data)
            self._deliver(data if used == len(data) else data[:used])
            return used
        pieces: list[bytes] = []
        try:
            return body.feed(data, pieces)
        finally:  # the payload before an invalid byte counts
            if pieces:
                self._deliver(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _complete(self, exchange: Exchange, *, has_surplus: bool) -> None:
        if self._exchange is not exchange:  # the receiver has aborted it
            return
        self._body = None
        self._deliver = _discard
        self._release(exchange, self._may_stay_open and not has_surplus)
        exchange.receiver.exchange_finished()

    def _release(self, exchange: Exchange, stays_open: bool) -> None:
        self._exchange = exchange.connection = None
        if stays_open and not self._backlog:  # the next answer must not begin with surplus bytes
            self._is_reused = True
            if self._is_paused:
                self.resume()
            self._pool.became_idle(self)
        else:
            self.abort()

    @staticmethod
    def _finish(exchange: Exchange) -> None:
        exchange.connection = None
        exchange.receiver.exchange_finished()

    @staticmethod
    def _fail(exchange: Exchange, error: GatewayError) -> None:
        exchange.connection = None
        exchange.receiver.exchange_failed(error)
