"""A gRPC client over HTTP/2: no task per call, one connection for all calls, another when that is full.

Owns the sockets, and decides when to open and close them. h2_connection handles frames.
"""

import asyncio
import logging
import ssl
from functools import partial
from typing import cast

from gateway.backends.rpc.call import Receiver, Status
from gateway.backends.rpc.h2_connection import Connection
from gateway.backends.rpc.h2_stream import H2Stream

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 1.0


class H2Client:
    """The connections to one server at host:port, opened when a call needs one; by TLS if there is a `tls` context.

    Calls that find no room wait in order while another connection is made. After a failed attempt no other is made for
    a moment, and calls end at once with UNAVAILABLE. Sends no pings: Triton closes connections that ping while idle.
    """

    def __init__(self, host: str, port: int, *, connect_timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._address = (host, port)
        self._tls = tls
        self._scheme = "http" if tls is None else "https"
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connect_timeout_s = connect_timeout_s
        self._links: set[Link] = set()
        self._open: list[Link] = []  # links that may take new calls, the oldest first
        self._waiting: dict[H2Stream, None] = {}  # in order
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0  # loop time of the next attempt
        self._is_closed = False
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<H2Client {self._authority} waiting={len(self._waiting)} {sorted(map(repr, self._links))}>"

    def start(self, path: str, request: bytes, receiver: Receiver) -> H2Stream:
        """Sends one serialized request and half-closes. `path`: /package.Service/Method."""
        stream = H2Stream(path, request, receiver)
        self._waiting[stream] = None
        stream.holder = self
        self.place_waiting()
        if self._waiting:
            self._connect_soon()
        return stream

    def renew(self) -> None:
        """Begins new calls on fresh connections, after a call without an answer. Running calls stay on theirs."""
        for link in tuple(self._open):
            self._retire(link)

    async def aclose(self) -> None:
        """Ends every call with UNAVAILABLE and closes every connection."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._fail_waiting("the client is being closed")
        for link in tuple(self._links):
            link.close("the client is being closed")
        if self._links:
            await self._all_closed.wait()

    # Called by streams and links.

    def cancel(self, stream: H2Stream) -> None:
        self._waiting.pop(stream, None)
        stream.release()

    def place_waiting(self) -> None:
        """Begin waiting calls, in order, as long as there is room."""
        while self._waiting and (link := self._find_room()) is not None:
            stream = next(iter(self._waiting))
            del self._waiting[stream]
            link.open(stream)

    def link_idle(self, link: "Link") -> None:
        """Keeps a link that carries no call, unless it is draining or another link has room."""
        is_spare = any(other is not link and other.connection.has_room for other in self._open)
        if link.connection.is_draining or (is_spare and link in self._open):
            self._retire(link)

    def link_closed(self, link: "Link") -> None:
        self._links.discard(link)
        if link in self._open:
            self._open.remove(link)
        if self._is_closed and not self._links:
            self._all_closed.set()
        elif self._waiting:  # perhaps for room on this link
            self._connect_soon()

    # Finding and making connections.

    def _find_room(self) -> "Link | None":
        for link in self._open:
            if link.connection.has_room:
                return link
        return None

    def _retire(self, link: "Link") -> None:
        """Begin no new calls on the link, and close it when its running calls are over."""
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
            loop.call_soon(self._fail_waiting, "it could not be reached a moment ago")
        elif loop.time() >= self._not_before:
            # The task lives only while connecting. It outlives the call that started it, so this client owns it.
            self._connecting = loop.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if self._waiting and not self._is_closed:  # more calls than this connection takes, or new calls
            self._connect_soon()

    async def _connect(self) -> None:
        try:
            link = await self._open_link()
        except (OSError, TimeoutError) as exc:
            logger.debug("%s cannot be reached: %r", self._authority, exc)
            backoff_s = min(FIRST_BACKOFF_S * 2**self._failures, LONGEST_BACKOFF_S)
            self._failures += 1
            self._not_before = asyncio.get_running_loop().time() + backoff_s
            if not self._open:  # else the calls wait for room on an open link
                self._fail_waiting("it cannot be reached")
        else:
            self._failures = 0
            self._open.append(link)
            self.place_waiting()

    async def _open_link(self) -> "Link":
        """Returns a link on which the server's settings have arrived. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        link: Link | None = None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                make_link = partial(Link, self, self._authority, self._scheme)
                _, link = await loop.create_connection(make_link, *self._address, ssl=self._tls)
                # Not earlier: for a connection that is closed before create_connection() returns, uvloop never calls
                # connection_lost, and aclose() would wait for it for ever.
                if link.is_open:
                    self._links.add(link)
                    await link.settled.wait()
        except BaseException:  # also for a cancel: the link would stay open without an owner
            if link is not None:
                link.close("it did not answer in time")
            raise
        if not link.connection.has_room:
            link.close("it takes no calls")
            raise ConnectionRefusedError("closed before its settings arrived, or takes no calls at all")
        return link

    def _fail_waiting(self, why: str) -> None:
        """End all waiting calls."""
        waiting, self._waiting = self._waiting, {}
        for stream in waiting:
            stream.end(Status.UNAVAILABLE, why)
        for stream in waiting:
            stream.deliver()


class Link(asyncio.Protocol):
    """One TCP or TLS connection: passes bytes between its socket and its Connection."""

    def __init__(self, client: H2Client, authority: str, scheme: str) -> None:
        self.connection = Connection(authority, scheme)
        self.settled = asyncio.Event()  # the server's settings have arrived, or the connection was lost
        self._client = client
        self._transport: asyncio.Transport  # set by connection_made, which is called before everything else

    def __repr__(self) -> str:
        return f"<Link {self.connection!r}>"

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    # Called by the client and by streams.

    def open(self, stream: H2Stream) -> None:
        stream.holder = self
        self.connection.open(stream)
        self._flush()

    def cancel(self, stream: H2Stream) -> None:
        self.connection.cancel(stream)
        self._after_change()

    def close(self, why: str) -> None:
        self.connection.send_goaway()
        self._flush()
        is_tls = self._transport.get_extra_info("ssl_object") is not None
        if self.is_open and (is_tls or self._transport.get_write_buffer_size()):
            self._transport.abort()  # close() would wait for a server that does not read, or for its close_notify
        elif self.is_open:
            self._transport.close()
        self.connection.end_streams(why)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class does not inherit from it
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self.connection.receive(data):
            self._after_change()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.link_closed(self)
        self.connection.end_streams("the connection was lost")
        self.settled.set()

    def pause_writing(self) -> None:
        self.connection.pause()

    def resume_writing(self) -> None:
        self.connection.resume()
        self._flush()

    def _flush(self) -> None:
        if (data := self.connection.data_to_send()) and self.is_open:
            self._transport.write(data)

    def _after_change(self) -> None:
        """Write, and update the client, after the connection has changed."""
        self._flush()
        connection = self.connection
        if connection.is_broken:
            self.close("it broke HTTP/2's rules")
        elif not connection.streams and connection.has_settings:
            self._client.link_idle(self)
            self.settled.set()
        self._client.place_waiting()
