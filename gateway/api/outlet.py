"""Where one answer's bytes leave the gateway: plain calls in, HTTP out.

Behind our own Downstream that is a Turn, which writes into the client's transport; behind any other server `AsgiOutlet`
does the same by ASGI messages. Knows no OpenAI.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from starlette.types import Message, Send

CRLF = b"\r\n"
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
    def client(self) -> str:
        """The address that it goes to, without the port; "" where there is none."""
        ...

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


class AsgiOutlet:
    """The same over ASGI messages, for any other server: what is written waits for `pump`, which runs in a task."""

    takes_chunks = False

    def __init__(self, send: Send, listener: Listener, stall_s: float, client: str = "") -> None:
        self.client = client
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
