"""Where one answer's bytes leave the gateway: plain calls in, HTTP out, straight into the client's transport.

`DirectOutlet` writes past ASGI into the transport of our Downstream, because a task switch and two ASGI messages per
token cost more than everything else a token does (docs/decisions/0011). Behind any other server `AsgiOutlet` does the
same by ASGI messages. Knows no OpenAI.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Protocol

from starlette.types import Message, Send

CRLF = b"\r\n"
LAST_CHUNK = b"0\r\n\r\n"
FIELD = b": ".join
CLOSE = b"connection: close"
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
# All that an engine, or a proxy before it, may say: 520 is in use and in no standard.
STATUS_LINES = {status: b"HTTP/1.1 %d %b" % (status, PHRASES.get(status, b"")) for status in range(200, 600)}
MANY_MESSAGES = 64
# Of a write that takes long only so much is held by ASGI at a time: the time limit is for each slice.
SLICE_BYTES = 64 * 1024


class Listener(Protocol):
    """Who hears what becomes of a client; plain calls."""

    def left(self) -> None:
        """The client is gone, or has stood still for too long and was cut off; nothing can be sent any more."""
        ...

    def paused(self) -> None:
        """More is buffered than the client takes at the moment. Writing goes on being allowed."""
        ...

    def resumed(self) -> None: ...


class Outlet(Protocol):
    """One answer's way out: `begin`, `write` any number of times, `end`; all harmless once the client has left.

    `takes_chunks`: whether `write` may be given a body that is in HTTP chunks already, after `begin(is_framed=True)`.
    """

    takes_chunks: bool

    @property
    def has_left(self) -> bool: ...

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        """Status and header, of which `lines` are fields as they go on the wire, leave with the first write.

        `length` None: not known yet.
        """
        ...

    def write(self, data: bytes) -> None: ...

    def splice(self) -> Callable[[bytes], None]:
        """core.RelaySink's."""
        ...

    def lost(self) -> None: ...

    def end(self, data: bytes = b"") -> None:
        """The answer is complete with `data`."""
        ...

    def cut(self) -> None:
        """Break off the connection: the only honest end of a body that cannot be completed."""
        ...


class Turn(Protocol):
    """What a DirectOutlet writes for and into; Downstream's account of one request."""

    transport: asyncio.Transport
    keep_alive: bool
    is_http11: bool
    default_headers: Sequence[tuple[bytes, bytes]]

    @property
    def has_left(self) -> bool: ...

    def begun(self, status: int) -> None: ...

    def complete(self) -> None: ...


class DirectOutlet:
    """Writes into the transport of a Downstream.

    A client that takes no byte for `stall_s` while more waits than the transport likes to hold is cut off, also when
    the answer is complete.
    """

    __slots__ = (
        "_head", "_is_chunked", "_is_framed", "_listener", "_stall_s", "_transport", "_turn", "_untaken", "_watch",
        "takes_chunks",
    )  # fmt: skip

    def __init__(self, turn: Turn, listener: Listener, stall_s: float) -> None:
        self._turn = turn
        self._transport = turn.transport
        self._listener: Listener | None = listener
        self._stall_s = stall_s
        self._head = b""
        self._is_chunked = self._is_framed = False
        self._watch: asyncio.TimerHandle | None = None
        self._untaken = 0  # in the transport's buffer when the watch last looked, and written since
        self.takes_chunks = turn.is_http11

    @property
    def has_left(self) -> bool:
        return self._turn.has_left

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        turn = self._turn
        turn.begun(status)
        if length is not None:
            framing = b"content-length: %d" % length
        elif self.takes_chunks:
            framing = b"transfer-encoding: chunked"
            self._is_chunked = not is_framed
            self._is_framed = is_framed
        else:  # HTTP/1.0: the connection's end is the body's
            framing = CLOSE
            turn.keep_alive = False
        if status >= 400 and CLOSE in lines:
            turn.keep_alive = False
        elif not turn.keep_alive and framing != CLOSE:
            framing += CRLF + CLOSE
        self._head = CRLF.join((STATUS_LINES[status], *map(FIELD, turn.default_headers), *lines, framing, CRLF))

    def write(self, data: bytes) -> None:
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._send(data)

    def splice(self) -> Callable[[bytes], None]:
        return self._transport.write

    def end(self, data: bytes = b"") -> None:
        if self._is_chunked or (self._is_framed and data):  # chunks that were passed on had their own end, or had none
            data = b"%x\r\n%b\r\n%b" % (len(data), data, LAST_CHUNK) if data else LAST_CHUNK
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self._send(data)
        self._listener = None
        turn = self._turn
        turn.complete()
        if not turn.keep_alive:
            self.paused()  # the connection is being closed, but what is buffered still has to be taken in time

    def cut(self) -> None:
        self._listener = None
        self._transport.abort()

    # What Downstream tells it.

    def lost(self) -> None:
        self._unwatch()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.left()

    def paused(self) -> None:
        if self._watch is None:
            self._untaken = self._transport.get_write_buffer_size()
            self._arm()
        if self._listener is not None:
            self._listener.paused()

    def succeed(self, outlet: "DirectOutlet") -> None:
        """The next answer begins on this connection, perhaps before the client has taken this one (pipelining)."""
        if self._watch is not None:
            self._unwatch()
            outlet.paused()

    def resumed(self) -> None:
        self._unwatch()
        if self._listener is not None:
            self._listener.resumed()

    # From here to the transport.

    def _send(self, data: bytes) -> None:
        if self._watch is not None:
            self._untaken += len(data)
        try:
            self._transport.write(data)
        except RuntimeError:  # uvloop's for a transport that is closed, which its protocol has not heard of yet
            self.lost()

    def _arm(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self._stall_s, self._look)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        self._watch = None
        untaken = self._transport.get_write_buffer_size()
        if not untaken:
            return
        if untaken < self._untaken:
            self._untaken = untaken
            self._arm()
            return
        self._transport.abort()
        self.lost()


class AsgiOutlet:
    """The same over ASGI messages, for any other server: what is written waits for `pump`, which runs in a task."""

    takes_chunks = False

    def __init__(self, send: Send, listener: Listener, stall_s: float) -> None:
        self._send = send
        self._listener = listener
        self._stall_s = stall_s
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._is_over = False
        self._is_holding = False
        self.has_left = False

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        sized = () if length is None else ((b"content-length", b"%d" % length),)
        fields = [tuple(line.split(b": ", 1)) for line in CRLF.join(lines).split(CRLF)]
        self._put({"type": "http.response.start", "status": status, "headers": [*fields, *sized]})

    def write(self, data: bytes) -> None:
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if not self._is_holding and len(self._messages) > MANY_MESSAGES:
            self._is_holding = True
            self._listener.paused()

    def splice(self) -> Callable[[bytes], None]:
        return self.write

    def lost(self) -> None:
        self.leave()

    def end(self, data: bytes = b"") -> None:
        self._put({"type": "http.response.body", "body": data, "more_body": False})
        self._is_over = True

    def cut(self) -> None:
        """ASGI has no word for it; an app that returns in the middle of its answer has its connection closed."""
        self._messages.clear()
        self._is_over = True
        self._changed.set()

    def leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            self.cut()
            self._listener.left()

    async def pump(self) -> None:
        """Send what is written, until the end has been sent or the client has left."""
        while self._messages or not self._is_over:
            await self._changed.wait()
            self._changed.clear()
            while self._messages:
                await self._send_in_time(self._messages.popleft())
            if self._is_holding:
                self._is_holding = False
                self._listener.resumed()

    def _put(self, message: Message) -> None:
        if not self._is_over:
            self._messages.append(message)
            self._changed.set()

    async def _send_in_time(self, message: Message) -> None:
        try:
            for part in _slices(message):
                async with asyncio.timeout(self._stall_s):
                    await self._send(part)
        # OSError: what ASGI servers raise for a client that is gone. RuntimeError: uvloop does, through uvicorn.
        except (TimeoutError, OSError, RuntimeError):
            self.leave()


def _slices(message: Message) -> Iterator[Message]:
    """A long body in parts: the time limit is for each."""
    body = message.get("body", b"")
    if len(body) <= SLICE_BYTES:
        yield message
        return
    for start in range(0, len(body), SLICE_BYTES):
        end = start + SLICE_BYTES
        yield {**message, "body": body[start:end], "more_body": message["more_body"] or end < len(body)}
