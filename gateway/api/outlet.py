"""Where one answer's bytes leave the gateway: plain calls in, HTTP out, straight into the client's transport.

`Downstream` is uvicorn's HTTP protocol with ears; `DirectOutlet` writes past ASGI into its transport, because a task
switch and two ASGI messages per token cost more than everything else a token does (docs/decisions/0011). Behind any
other server `AsgiOutlet` does the same by ASGI messages. Knows no OpenAI.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Protocol, cast

from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from gateway.core import Fields

LAST_CHUNK = b"0\r\n\r\n"
FIELD = b": ".join
CLOSE = (b"connection", b"close")
STATUS_LINES = {status.value: b"HTTP/1.1 %d %b" % (status.value, status.phrase.encode()) for status in HTTPStatus}
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

    def begin(self, status: int, fields: Fields, length: int | None = None, *, is_framed: bool = False) -> None:
        """Status and header fields go out with the first write. `length` None: not known yet."""
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


class Downstream(HttpToolsProtocol):
    """uvicorn's protocol, which also tells the outlet of the answer under way what becomes of its client."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # Any: uvicorn's own
        super().__init__(*arguments, **options)
        self.outlet: DirectOutlet | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.outlet is not None:
            self.outlet.lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.outlet is not None:
            self.outlet.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.outlet is not None:
            self.outlet.resumed()

    def timeout_keep_alive_handler(self) -> None:
        # Closing waits until the client has taken what is buffered, and one that has stood still since never will.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()


def find_cycle(send: Send) -> RequestResponseCycle | None:
    """uvicorn's side of this request, if it is served by a `Downstream`."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is RequestResponseCycle and type(cycle.transport.get_protocol()) is Downstream:
        return cycle
    return None


class DirectOutlet:
    """Writes into uvicorn's transport and keeps uvicorn's own account of the request.

    A client that takes no byte for `stall_s` while more waits than the transport likes to hold is cut off, also when
    the answer is complete.
    """

    def __init__(self, cycle: RequestResponseCycle, listener: Listener, stall_s: float) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._listener: Listener | None = listener
        self._stall_s = stall_s
        self._head = b""
        self._is_chunked = False
        self._has_body = cycle.scope["method"] != "HEAD"
        self._watch: asyncio.TimerHandle | None = None
        self._untaken = 0  # in the transport's buffer when the watch last looked, and written since
        self.takes_chunks = cycle.scope["http_version"] == "1.1"
        self._protocol = cast("Downstream", cycle.transport.get_protocol())
        self._protocol.outlet = self

    @property
    def has_left(self) -> bool:
        return self._cycle.disconnected or self._transport.is_closing()

    def begin(self, status: int, fields: Fields, length: int | None = None, *, is_framed: bool = False) -> None:
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        if cycle.access_log:
            self._log(status)
        if length is not None:
            framing = b"content-length: %d" % length
        elif self.takes_chunks:
            framing = b"transfer-encoding: chunked"
            self._is_chunked = not is_framed
        else:  # HTTP/1.0: the connection's end is the body's
            framing = b"connection: close"
            cycle.keep_alive = False
        lines = [STATUS_LINES[status]]
        lines += map(FIELD, cycle.default_headers)
        lines += map(FIELD, fields)
        if status >= 400 and CLOSE in fields:
            cycle.keep_alive = False
        elif not cycle.keep_alive and framing != b"connection: close":
            lines.append(b"connection: close")
        self._head = b"\r\n".join((*lines, framing, b"\r\n"))

    def write(self, data: bytes) -> None:
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._send(data)

    def splice(self) -> Callable[[bytes], None]:
        return self._transport.write

    def end(self, data: bytes = b"") -> None:
        if not self._has_body:
            data = b""
        elif self._is_chunked:
            data = b"%x\r\n%b\r\n%b" % (len(data), data, LAST_CHUNK) if data else LAST_CHUNK
        if self._head or data:
            self._send(self._head + data)
        self._complete()

    def cut(self) -> None:
        self._listener = None
        self._transport.abort()

    # What the protocol tells it.

    def lost(self) -> None:
        self._unwatch()
        self._protocol.outlet = None
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.left()

    def paused(self) -> None:
        if self._watch is None:
            self._untaken = self._transport.get_write_buffer_size()
            self._arm()
        if self._listener is not None:
            self._listener.paused()

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

    def _complete(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        self._listener = None
        if not cycle.keep_alive:
            self._transport.close()
            self.paused()  # what is buffered still has to be taken in time
        cycle.on_response()

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

    def _log(self, status: int) -> None:
        scope = self._cycle.scope
        line = (scope["method"], get_path_with_query_string(scope), scope["http_version"], status)
        self._cycle.access_logger.info('%s - "%s %s HTTP/%s" %d', get_client_addr(scope), *line)


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

    def begin(self, status: int, fields: Fields, length: int | None = None, *, is_framed: bool = False) -> None:
        sized = () if length is None else ((b"content-length", b"%d" % length),)
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
        except (TimeoutError, OSError):  # OSError: what ASGI servers raise for a client that is gone
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
