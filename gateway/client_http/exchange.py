"""One request and the way out for its answer, as whoever answers it sees them. Plain calls both ways.

Behind our own connection an exchange writes into the client's transport; behind any other server it sends ASGI
messages. Knows no OpenAI.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from gateway.client_http.head import RequestHead
from gateway.errors import GatewayError

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection, or read nothing for so long that we did. No error: nobody waits for one."""


class Listener(Protocol):
    """What is called when something becomes of the client."""

    def left(self) -> None:
        """The client is gone, or has read nothing for too long and was disconnected; nothing can be sent any more."""
        ...

    def paused(self) -> None:
        """More is buffered than the client reads at the moment. Writing stays allowed."""
        ...

    def resumed(self) -> None: ...


class Exchange(Protocol):
    """Its answer is `begin`, `write` any number of times, `finish`; all harmless once the client has left.

    `body`: the request's, whole. `error`: why there is none. `takes_chunks`: whether `write` may be given a body that
    is in HTTP chunks already, after `begin(is_framed=True)`.
    """

    head: RequestHead
    body: bytes | bytearray
    error: GatewayError | None
    takes_chunks: bool

    @property
    def client(self) -> str:
        """The client's address without the port; "" where there is none."""
        ...

    @property
    def has_left(self) -> bool: ...

    def attach(self, listener: Listener) -> None:
        """From here on `listener` is called when something becomes of the client."""
        ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it as a task that the server waits for, and cancels, when it shuts down."""
        ...

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

    def finish(self, data: bytes = b"") -> None:
        """The answer is complete with `data`."""
        ...

    def abort(self) -> None:
        """Break off the connection: the only honest end of a body that cannot be completed."""
        ...
