"""One request and the way out for its answer, as the code that answers it sees them. Both ways use plain calls.

Behind our own connection an exchange writes into the client's transport; behind any other server it sends ASGI
messages. Knows no OpenAI.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from gateway.access import Caller
from gateway.client_http.head import RequestHead
from gateway.errors import GatewayError

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection, or read nothing for so long that we did. Not an error: nobody waits for one."""


class Listener(Protocol):
    """Receives a call when the client leaves, falls behind in reading, or catches up."""

    def left(self) -> None:
        """The client is gone, or has read nothing for too long and was disconnected; nothing can be sent any more."""
        ...

    def paused(self) -> None:
        """More is buffered than the client reads at the moment. Writing stays allowed."""
        ...

    def resumed(self) -> None: ...


class Exchange(Protocol):
    """A request. Its answer is `begin`, `write` any number of times, `finish`; all harmless once the client has left.

    `body`: the request's whole body. `error`: why there is none. `caller`: whose key it came with, where keys matter.
    `takes_chunks`: whether `write` may be given a body that is in HTTP chunks already, after `begin(is_framed=True)`.
    """

    head: RequestHead
    body: bytes | bytearray
    error: GatewayError | None
    caller: Caller | None
    takes_chunks: bool

    @property
    def client(self) -> str:
        """The client's address without the port; "" where there is none."""
        ...

    @property
    def has_left(self) -> bool: ...

    def attach(self, listener: Listener) -> None:
        """Has `listener` called from now on when the client leaves, falls behind in reading, or catches up."""
        ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` as a task that the server waits for, and cancels, when it shuts down."""
        ...

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        """Begins the answer, whose head leaves with the first write. `lines`: header fields as they go on the wire.

        `length` None: not known yet.
        """
        ...

    def write(self, data: bytes) -> None: ...

    def splice(self) -> Callable[[bytes], None]:
        """Does what `core.RelaySink.splice` does."""
        ...

    def lost(self) -> None: ...

    def finish(self, data: bytes = b"") -> None:
        """Completes the answer with `data`."""
        ...

    def abort(self) -> None:
        """Break off the connection: the only honest end of a body that cannot be completed."""
        ...
