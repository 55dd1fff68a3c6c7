"""An HTTP/1.1 client for token streams: no task per answer, connections kept alive and reused, the freshest first.

Rendered requests in, answers to their receivers. Knows no JSON but its content type, no redirects, no TLS.
"""

import asyncio
import errno
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from gateway.address import find_door
from gateway.backends.dial import Dial, Server
from gateway.backends.http1 import Connection, Exchange, Receiver, Take
from gateway.backends.http1_framing import Head
from gateway.errors import BackendProtocolError, BackendUnavailable, GatewayError, Overloaded

MAX_FETCHED_BYTES = 16 * 1024 * 1024
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class Client:
    """Every connection to one server, named `peer` in errors. For one running event loop."""

    def __init__(self, url: str, *, peer: str, connect_timeout_s: float) -> None:
        door = find_door(url)
        parts = urlsplit(door.url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"not an http:// address: {url}")
        self.peer = peer
        self.is_closed = False
        self._server = Server(door.socket, parts.hostname, parts.port or 80)
        self._where = door.socket or parts.netloc
        self._host = parts.netloc
        self.host = parts.netloc.encode("ascii")
        self._connect_timeout_s = connect_timeout_s
        self._connecting: dict[asyncio.Task[None], Exchange] = {}
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        busy = len(self._open) - len(self._idle)
        counts = f"connecting={len(self._connecting)} busy={busy} idle={len(self._idle)}"
        return f"<Client {self._where} {counts}>"

    def render(self, method: str, path: str, json: bytes = b"") -> bytes:
        """A whole request; `json` is its body."""
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\n"
        if json:
            head += f"content-type: application/json\r\ncontent-length: {len(json)}\r\n"
        return f"{head}\r\n".encode("ascii") + json

    def send(self, request: bytes, receiver: Receiver) -> Exchange:
        """Send a rendered request; `receiver` hears the answer, though never from inside this call.

        What it hears as `lost`: BackendUnavailable (refused, timed out, closed), BackendProtocolError (not HTTP), or
        Overloaded (no descriptor left).
        """
        exchange = Exchange(request, receiver)
        connection = self._take_idle()
        if connection is None:
            self.connect(exchange)
        else:
            connection.carry(exchange)
        return exchange

    async def fetch(self, request: bytes) -> tuple[int, bytes]:
        """Status and whole body of the answer. Raises what `lost` would have been told."""
        whole = _WholeAnswer()
        exchange = self.send(request, whole)
        try:
            return await whole.answer
        finally:
            exchange.abort()

    async def aclose(self) -> None:
        """Drop every connection; receivers that still wait hear that their answers are lost."""
        self.is_closed = True
        tasks = tuple(self._connecting)
        for exchange in [exchange for exchange in self._connecting.values() if exchange.connecting is not None]:
            exchange.abort()
            exchange.receiver.lost(self._closed_error())
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            await self._all_closed.wait()

    # What connections tell it.

    def connect(self, exchange: Exchange) -> None:
        """Open a fresh connection for `exchange`."""
        # The task below runs when all that has come together with this request is read: the request need not wait.
        dial = Dial(self._server)
        if not self.is_closed:
            dial.begin(exchange.request)
        # A task lives while connecting and no longer. It outlives the call that asked for it, so this client owns it:
        # Exchange.abort() and aclose() cancel it, perhaps before it has run at all.
        task = asyncio.get_running_loop().create_task(self._connect(exchange, dial))
        exchange.connecting = task
        self._connecting[task] = exchange
        task.add_done_callback(partial(self._connected, dial))

    def parked(self, connection: Connection) -> None:
        self._idle.append(connection)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self.is_closed and not self._open:
            self._all_closed.set()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def _connected(self, dial: Dial, task: asyncio.Task[None]) -> None:
        self._connecting.pop(task)
        dial.close()

    async def _connect(self, exchange: Exchange, dial: Dial) -> None:
        try:
            connection = await self._open_connection(exchange, dial)
        except GatewayError as exc:
            exchange.connecting = None
            exchange.receiver.lost(exc)
        else:
            # Not a moment earlier: of a connection that is given up before create_connection() returns, uvloop never
            # says connection_lost, and aclose() would wait for it for ever.
            if connection.is_open:
                self._open.add(connection)
                connection.hold_up()

    async def _open_connection(self, exchange: Exchange, dial: Dial) -> Connection:
        if self.is_closed:
            raise self._closed_error()
        connection = Connection(self, exchange, dial.sent)
        protocol = cast("asyncio.Protocol", connection)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await dial.finish()
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=dial.take())
        except TimeoutError as exc:
            raise BackendUnavailable(f"{self.peer} accepted no connection in time") from exc
        except OSError as exc:
            if exc.errno in OUT_OF_DESCRIPTORS:  # which is no fault of the engine's
                raise Overloaded("The gateway has too many connections open; try again in a moment.") from exc
            raise BackendUnavailable(f"{self.peer} cannot be reached") from exc
        return connection

    def _closed_error(self) -> BackendUnavailable:
        return BackendUnavailable(f"{self.peer} is being closed")


class _WholeAnswer:
    """A receiver for short answers: everything at once, in a future."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._data = bytearray()

    def whole(self, head: Head, data: bytes) -> None:
        self.head(head, len(data))(data)
        self.done()

    def head(self, head: Head, length: int | None) -> Take:
        self._status = head.status
        return self._body

    def _body(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > MAX_FETCHED_BYTES:
            self.lost(BackendProtocolError("a control answer went on and on"))

    def done(self) -> None:
        if not self.answer.done():
            self.answer.set_result((self._status, bytes(self._data)))

    def lost(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
