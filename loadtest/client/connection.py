"""One keep-alive HTTP/1.1 connection that stamps bytes the moment they leave the socket.

In: a request's bytes and a receiver. Out: calls on the receiver; `exchange` returns when the response has ended.
A callback per read and one future per request: no task is switched per token (docs/decisions/0003-load-client.md).
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol, cast

import httptools

clock = time.perf_counter


class Receiver(Protocol):
    """Receives one response: when its request was written, its head, then its body as it arrives."""

    def begin(self, at: float) -> None: ...

    def head(self, status: int, headers: Mapping[str, str]) -> None: ...

    def body(self, data: bytes, at: float) -> None: ...

    def end(self) -> None: ...


class ConnectionLost(Exception):
    """The peer closed the connection, or sent something that is not HTTP, before the response had ended."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. Closing it, at any moment, cancels the request."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._ended: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._read_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Sends a request and receives the response. Raises ConnectionLost; closes the connection if cancelled."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("closed before the request")
        self._receiver = receiver
        self._ended = asyncio.get_running_loop().create_future()
        receiver.begin(clock())
        self._transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._receiver = None

    def abort(self) -> None:
        """Closes at once and drops unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        self._read_at = clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(f"not HTTP: {exc}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"closed before the response was over ({exc or 'end of stream'})")

    # httptools

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._receiver:
            self._receiver.head(self._parser.get_status_code(), self._headers)

    def on_body(self, data: bytes) -> None:
        if self._receiver:
            self._receiver.body(data, self._read_at)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.abort()
        if self._receiver and self._ended and not self._ended.done():
            self._receiver.end()
            self._ended.set_result(None)

    def _fail(self, why: str) -> None:
        if self._ended and not self._ended.done():
            self._ended.set_exception(ConnectionLost(why))
