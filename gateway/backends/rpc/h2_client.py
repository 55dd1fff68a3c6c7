"""A gRPC client over cleartext HTTP/2: no task per call, one connection for all of them, another when that is full.

Implements channel.Channel. Frames are h2_connection's affair; here are sockets, and when to open and close them.
"""

import asyncio
import logging
from functools import partial
from typing import cast

from gateway.backends.rpc.channel import Receiver
from gateway.backends.rpc.h2_connection import Connection
from gateway.backends.rpc.h2_stream import H2Stream
from gateway.backends.rpc.status import Status

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 1.0


class H2Client:
    """Every connection to one server at host:port, opened when a call needs it.

    Calls that find no room wait in order while a further connection is made. After a failed attempt nothing is tried
    for a moment, and calls end as UNAVAILABLE at once. Pings are never sent: Triton turns away who pings while idle.
    """

    def __init__(self, host: str, port: int, *, connect_timeout_s: float) -> None:
        self._address = (host, port)
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connect_timeout_s = connect_timeout_s
        self._links: set[Link] = set()
        self._open: list[Link] = []  # those that may take calls, the oldest first
        self._waiting: dict[H2Stream, None] = {}  # in order
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0  # loop time of the next attempt
        self._is_closed = False
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<H2Client {self._authority} waiting={len(self._waiting)} {sorted(map(repr, self._links))}>"

    # channel.Channel's.

    def start(self, path: str, request: bytes, receiver: Receiver) -> H2Stream:
        stream = H2Stream(path, request, receiver)
        self._waiting[stream] = None
        stream.holder = self
        self.place_waiting()
        if self._waiting:
            self._connect_soon()
        return stream

    def renew(self) -> None:
        for link in tuple(self._open):
            self._retire(link)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._give_up("the client is being closed")
        for link in tuple(self._links):
            link.close("the client is being closed")
        if self._links:
            await self._all_closed.wait()

    # What streams and links tell it.

    def cancel(self, stream: H2Stream) -> None:
        self._waiting.pop(stream, None)
        stream.let_go()

    def place_waiting(self) -> None:
        """Let calls begin for which there is room now, in order."""
        while self._waiting and (link := self._find_room()) is not None:
            stream = next(iter(self._waiting))
            del self._waiting[stream]
            link.open(stream)

    def became_idle(self, link: "Link") -> None:
        """It carries nothing. It is kept, unless it has to go or another can take its place."""
        is_spare = any(other is not link and other.connection.has_room for other in self._open)
        if link.connection.is_draining or (is_spare and link in self._open):
            self._retire(link)

    def lost(self, link: "Link") -> None:
        self._links.discard(link)
        if link in self._open:
            self._open.remove(link)
        if self._is_closed and not self._links:
            self._all_closed.set()
        elif self._waiting:  # for room on this one, it may be
            self._connect_soon()

    # Finding a connection, making one.

    def _find_room(self) -> "Link | None":
        for link in self._open:
            if link.connection.has_room:
                return link
        return None

    def _retire(self, link: "Link") -> None:
        """No new calls; closed as soon as those that run are over."""
        if link in self._open:
            self._open.remove(link)
        link.connection.drain()
        if not link.connection.streams:
            link.close("it is not needed any more")

    def _connect_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._connecting is not None:
            return
        if self._is_closed or (loop.time() < self._not_before and not self._open):
            loop.call_soon(self._give_up, "it could not be reached a moment ago")
        elif loop.time() >= self._not_before:
            # A task lives while connecting and no longer. It outlives the call it is for, so this client owns it.
            self._connecting = loop.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if self._waiting and not self._is_closed:  # more than this connection can take, or they came just now
            self._connect_soon()

    async def _connect(self) -> None:
        try:
            link = await self._open_link()
        except (OSError, TimeoutError) as exc:
            logger.debug("%s cannot be reached: %r", self._authority, exc)
            backoff_s = min(FIRST_BACKOFF_S * 2**self._failures, LONGEST_BACKOFF_S)
            self._failures += 1
            self._not_before = asyncio.get_running_loop().time() + backoff_s
            if not self._open:  # else room on those is waited for
                self._give_up("it cannot be reached")
        else:
            self._failures = 0
            self._open.append(link)
            self.place_waiting()

    async def _open_link(self) -> "Link":
        """A connection on which the server has said hello. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        link: Link | None = None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, link = await loop.create_connection(partial(Link, self, self._authority), *self._address)
                # Not a moment earlier: of a connection that is made, but given up before create_connection() returns,
                # uvloop never says connection_lost, and aclose() would wait for it for ever.
                if link.is_open:
                    self._links.add(link)
                    await link.greeted.wait()
        except BaseException:  # also when whoever waits is cancelled: a link that nobody took would stay open
            if link is not None:
                link.close("it did not answer in time")
            raise
        if not link.connection.has_room:
            link.close("it takes no calls")
            raise ConnectionRefusedError("closed before it said hello, or takes no calls at all")
        return link

    def _give_up(self, why: str) -> None:
        """End all that waits."""
        waiting, self._waiting = self._waiting, {}
        for stream in waiting:
            stream.end(Status.UNAVAILABLE, why)
        for stream in waiting:
            stream.deliver()


class Link(asyncio.Protocol):
    """One TCP connection: carries bytes between its socket and its Connection."""

    def __init__(self, client: H2Client, authority: str) -> None:
        self.connection = Connection(authority)
        self.greeted = asyncio.Event()  # or lost
        self._client = client
        self._transport: asyncio.Transport  # there from connection_made on, which comes before everything else

    def __repr__(self) -> str:
        return f"<Link {self.connection!r}>"

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    # What the client and streams ask of it.

    def open(self, stream: H2Stream) -> None:
        stream.holder = self
        self.connection.open(stream)
        self._flush()

    def cancel(self, stream: H2Stream) -> None:
        self.connection.cancel(stream)
        self._settle()

    def close(self, why: str) -> None:
        self.connection.say_goodbye()
        self._flush()
        if self.is_open and self._transport.get_write_buffer_size():
            self._transport.abort()  # whoever does not read is not waited for
        elif self.is_open:
            self._transport.close()
        self.connection.lose(why)

    # What the event loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self.connection.receive(data):
            self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)
        self.connection.lose("the connection was lost")
        self.greeted.set()

    def pause_writing(self) -> None:
        self.connection.pause()

    def resume_writing(self) -> None:
        self.connection.resume()
        self._flush()

    def _flush(self) -> None:
        if (data := self.connection.take()) and self.is_open:
            self._transport.write(data)

    def _settle(self) -> None:
        """What may follow from what has just come or gone."""
        self._flush()
        connection = self.connection
        if connection.is_broken:
            self.close("it broke HTTP/2's rules")
        elif not connection.streams and connection.is_greeted:
            self._client.became_idle(self)
            self.greeted.set()
        self._client.place_waiting()
