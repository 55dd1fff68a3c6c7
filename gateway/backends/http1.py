"""One HTTP/1.1 connection to an engine: a rendered request in, its answer out by plain calls.

Both lanes read here: the token lane takes the payload, the relay lane the body with its framing as it came, its whole
chunks past the receiver. Knows no JSON and no other connection, and of events only what ends one; whose connections
these are and when they open is the pool's affair.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, cast

from gateway.backends.http1_framing import LF, Body, Chunked, Head, NotHTTP, measure_size_line, split_head
from gateway.errors import BackendProtocolError, BackendUnavailable, GatewayError

SHORT: Final = 64  # of fewer bytes are [DONE] and the last chunk, which must not push the usage out of what is kept
END_OF_EVENT: Final = b"\n\n"

# Of what came in one read, the rest waits for the next turn of the loop: 256 kB in the smallest chunks take 60 ms, and
# libuv reads a socket that always has more 32 times before it looks at another.
PORTION: Final = 16 * 1024
MAX_INTERIM = 16  # answers of status 1xx before the one that was asked for

Take: TypeAlias = Callable[[bytes], None]


class Receiver(Protocol):
    """Takes one answer: `whole`, or `head` once, its body, then `done`; or `lost` at any point.

    Nothing comes after `Exchange.abort`.
    """

    def whole(self, head: Head, data: bytes) -> None:
        """All of an answer that came in one read, with `data` as its body."""
        ...

    def head(self, head: Head, length: int | None) -> Take:
        """Who takes the body, in one call per read, however many chunks came with it: what follows costs per call.

        `length`: of the body, if that is how its end is told.
        """
        ...

    def done(self) -> None: ...

    def lost(self, error: GatewayError) -> None: ...


def _nobody(_: bytes) -> None:
    pass


def _count_events(chunk: bytes, start: int) -> int:
    """The ends of events in a whole chunk with its payload at `start`: one, unless a line ends before the last two."""
    if chunk[-3] == LF == chunk[-4] and LF not in chunk[start:-4]:
        return 1
    return chunk.count(END_OF_EVENT)


class Splice:
    """Where whole chunks go past their receiver: into `write`, with their events counted and the last two kept.

    `refused` is told when `write` raises RuntimeError. A base and no Protocol: its attributes are found at once.
    """

    def __init__(self) -> None:
        self.write: Take = _nobody
        self.events = 0
        self.kept = b""
        self.kept_before = b""

    def refused(self) -> None:
        raise NotImplementedError


class Exchange:
    """One request and its answer, from the wish for a connection to the answer's last byte.

    `takes_framing`: the receiver wants the body with its chunk framing; it may say so until `head` returns. `splice`:
    once it has begun to pass that on, chunks that come one by one may go there.
    """

    def __init__(self, request: bytes, receiver: Receiver) -> None:
        self.request = request
        self.receiver = receiver
        self.takes_framing = False
        self.splice: Splice | None = None
        self.is_paused = False
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

    def pause(self) -> None:
        """Read no more of the answer for now: the engine is held up once the sockets between are full."""
        self.is_paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self.connection is not None:
            self.connection.resume()


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


class Connection:
    """One connection, by TCP or through a socket in the file system: idle, or carrying one exchange.

    It is made for its `first` one, of whose request `sent` bytes have gone ahead. An asyncio.Protocol, but not by
    inheritance: as LiveCall it is compiled.
    """

    def __init__(self, pool: Pool, first: Exchange, sent: int) -> None:
        self._pool = pool
        self._first: Exchange | None = first
        self._sent = sent
        self._transport: asyncio.Transport  # there from connection_made on, which comes before everything else
        self._exchange: Exchange | None = None
        self._is_reused = False
        self._is_paused = False
        self._start = b""  # of an answer whose head is incomplete
        self._interim = 0  # answers that have only announced it
        self._body: Body | None = None  # None until the head is there
        self._is_spliced = False  # the body's receiver takes it in chunks
        self._deliver: Take = _nobody  # takes the body
        # While the first byte of a chunk is next: the same, for the payload, or whom chunks go to as they are.
        self._take: Take | None = None
        self._splice: Splice | None = None
        self._may_stay_open = False
        self._backlog = b""  # read, and not yet taken apart; nothing more is read meanwhile
        self._is_held = False

    # What the pool and the exchange do with it.

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def carry(self, exchange: Exchange) -> None:
        """Send the request; its receiver will hear the answer. Only for a connection that is idle."""
        self._begin_with(exchange, 0)
        self.hold_up()

    def hold_up(self) -> None:
        """Read nothing if the exchange is paused."""
        if self._exchange is not None and self._exchange.is_paused:
            self.pause()

    def abort(self) -> None:
        """Close without another word to the receiver."""
        self._exchange = self._take = self._splice = None
        self._deliver = _nobody
        self._backlog = b""
        self._transport.abort()

    def close(self) -> None:
        """Close; the receiver, if there is one, hears that its answer is lost."""
        self._transport.abort()

    def pause(self) -> None:
        if not self._is_paused and self.is_open:
            self._is_paused = True
            if not self._is_held:
                self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and self.is_open:
            self._is_paused = False
            if not self._is_held:
                self._transport.resume_reading()

    # What the event loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        if (first := self._first) is not None:
            self._first = None
            if first.connecting is None:  # it has been given up
                self.abort()
            else:
                self._begin_with(first, self._sent)  # it is held up later: uvloop starts to read after this call

    def data_received(self, data: bytes) -> None:
        # One whole chunk, as nearly every read is that brings a token: every step here is one more for each of them.
        if (splice := self._splice) is not None:
            if len(data) >= SHORT and (start := measure_size_line(data)):
                splice.events += _count_events(data, start)
                splice.kept_before, splice.kept = splice.kept, data
                try:
                    splice.write(data)
                except RuntimeError:
                    splice.refused()
                return
        elif (take := self._take) is not None and (start := measure_size_line(data)):
            take(data[start:-2])
            return
        self._read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._backlog and self._exchange is not None:  # it came before the end
            data, self._backlog = self._backlog[:PORTION], self._backlog[PORTION:]
            self._read(data)
        self._pool.closed(self)
        exchange, self._exchange, self._take, self._splice = self._exchange, None, None, None
        self._deliver = _nobody
        if exchange is None:
            return
        if self._body is not None and self._body.ends_with_connection and exc is None:
            self._finish(exchange)
        # A server may close a kept-alive connection just as we write on it (uvicorn does after 5 s idle). Sending the
        # request once more, on a fresh connection, is safe although it is a POST: no byte of an answer had come, so
        # nobody has seen a token; generating changes no state; and had the engine begun, losing us makes it abort.
        elif self._is_reused and self._body is None and not self._start and not self._pool.is_closed:
            exchange.connection = None
            self._pool.connect(exchange)
        else:
            self._lose(exchange, BackendUnavailable(f"{self._pool.peer} closed the connection"))

    def eof_received(self) -> None:
        """The transport is to close itself."""

    def pause_writing(self) -> None:
        """A request is written in one piece, so that nothing is left to be held back."""

    def resume_writing(self) -> None:
        """As above."""

    # From there to the receiver.

    def _begin_with(self, exchange: Exchange, sent: int) -> None:
        exchange.connecting = None  # from here on it is given up by way of this connection
        exchange.connection = self
        self._exchange = exchange
        if rest := exchange.request[sent:]:
            self._transport.write(rest)

    def _read(self, data: bytes) -> None:
        if len(data) > PORTION:
            data = self._hold_back(data)
        exchange, self._take, self._splice = self._exchange, None, None
        if exchange is None:
            self.abort()  # nobody asked for these bytes, and the next answer must not begin with them
            return
        try:
            if self._body is None:
                self._read_head(exchange, data)
            else:
                self._read_body(exchange, self._body, data)
        except NotHTTP:
            if self._exchange is exchange:
                self.abort()
                self._lose(exchange, BackendProtocolError(f"{self._pool.peer} sent something that is not HTTP"))

    def _hold_back(self, data: bytes) -> bytes:
        """A portion of it; the rest is kept, and the connection not read, until the loop comes round."""
        self._backlog = data[PORTION:]
        if not self._is_held:
            self._is_held = True
            if not self._is_paused:
                self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)
        return data[:PORTION]

    def _go_on(self) -> None:
        data, self._backlog = self._backlog, b""
        if data:
            self._read(data)
        if not self._backlog and self._is_held:
            self._is_held = False
            if not self._is_paused and self.is_open:
                self._transport.resume_reading()

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        if self._start:
            data = self._start + data
        while (split := split_head(data)) is not None:
            head, length, data = split
            if head.status < 200:  # it only announces the answer
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise NotHTTP("interim answers without an end")
            else:
                self._start = b""
                self._interim = 0
                if length == len(data):
                    self._let_go(exchange, head.keeps_open)
                    exchange.receiver.whole(head, data)
                else:
                    self._begin(exchange, head, length, data)
                return
        self._start = data

    def _begin(self, exchange: Exchange, head: Head, length: int | None, rest: bytes) -> None:
        deliver = exchange.receiver.head(head, length)
        if self._exchange is not exchange:  # its receiver has aborted it
            return
        self._deliver = deliver
        self._body = body = head.body(length)
        self._may_stay_open = head.keeps_open and not body.ends_with_connection
        self._is_spliced = exchange.takes_framing and head.is_chunked
        if head.is_chunked and head.sends_at_once:
            self._acknowledge_late()
        if rest:
            self._read_body(exchange, body, rest)

    def _acknowledge_late(self) -> None:
        """Have a token's segment acknowledged with the next one's, which halves the packets that go to the engine.

        Not for every server: one that does not send until it is acknowledged would be held up by 40 ms a token.
        """
        connection = self._transport.get_extra_info("socket")
        is_tcp = connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}
        if is_tcp and hasattr(socket, "TCP_QUICKACK"):  # Linux has it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)

    def _read_body(self, exchange: Exchange, body: Body, data: bytes) -> None:
        used = self._pass_on(body, data)
        if body.is_complete:
            self._complete(exchange, has_surplus=used != len(data))
        elif self._exchange is exchange and isinstance(body, Chunked) and body.is_between:
            if not self._is_spliced:
                self._take = self._deliver
            else:
                self._splice = exchange.splice

    def _pass_on(self, body: Body, data: bytes) -> int:
        if self._is_spliced and isinstance(body, Chunked):
            used = body.skip(data)
            self._deliver(data if used == len(data) else data[:used])
            return used
        pieces: list[bytes] = []
        try:
            return body.feed(data, pieces)
        finally:  # what came before nonsense counts
            if pieces:
                self._deliver(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _complete(self, exchange: Exchange, *, has_surplus: bool) -> None:
        if self._exchange is not exchange:  # its receiver has aborted it
            return
        self._body = None
        self._deliver = _nobody
        self._let_go(exchange, self._may_stay_open and not has_surplus)
        exchange.receiver.done()

    def _let_go(self, exchange: Exchange, stays_open: bool) -> None:
        self._exchange = exchange.connection = None
        if stays_open and not self._backlog:  # more than was asked for: the next answer must not begin with it
            self._is_reused = True
            if self._is_paused:
                self.resume()
            self._pool.parked(self)
        else:
            self.abort()

    @staticmethod
    def _finish(exchange: Exchange) -> None:
        exchange.connection = None
        exchange.receiver.done()

    @staticmethod
    def _lose(exchange: Exchange, error: GatewayError) -> None:
        exchange.connection = None
        exchange.receiver.lost(error)
