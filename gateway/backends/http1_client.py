"""An HTTP/1.1 client for token streams: no task per answer; idle connections are reused, the latest first.

Rendered requests in, answers to their receivers. Knows no JSON except its content type, no redirects, no TLS.
"""

import asyncio
import errno
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from gateway.address import parse_target
from gateway.backends.dial import Dial, Server
from gateway.backends.http1_connection import Connection, Deliver, Exchange, Receiver
from gateway.backends.http1_framing import Head
from gateway.errors import BackendProtocolError, BackendUnavailable, GatewayError, Overloaded

MAX_FETCHED_BYTES = 16 * 1024 * 1024
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class Client:
    """Every connection to one server, named `peer` in errors. Belongs to one running event loop.

    `own_lines`: the header fields of every request, which are its host and `api_key`.
    """

    def __init__(self, url: str, *, peer: str, connect_timeout_s: float, api_key: str | None = None) -> None:
        target = parse_target(url)
        parts = urlsplit(target.url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"not an http:// address: {url}")
        self.peer = peer
        self.is_closed = False
        self._server = Server(target.socket_path, parts.hostname, parts.port or 80)
        self._shown_address = target.socket_path or parts.netloc
        self.host = parts.netloc.encode("ascii")
        self.own_lines = f"host: {parts.netloc}" + (f"\r\nauthorization: Bearer {api_key}" if api_key else "")
        self._connect_timeout_s = connect_timeout_s
        self._connecting: dict[asyncio.Task[None], Exchange] = {}
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        busy = len(self._open) - len(self._idle)
        counts = f"connecting={len(self._connecting)} busy={busy} idle={len(self._idle)}"
        return f"<Client {self._shown_address} {counts}>"

    def render(self, method: str, path: str, json: bytes = b"") -> bytes:
        """Returns a whole request with the body `json`."""
        head = f"{method} {path} HTTP/1.1\r\n{self.own_lines}\r\n"
        if json:
            head += f"content-type: application/json\r\ncontent-length: {len(json)}\r\n"
        return f"{head}\r\n".encode("ascii") + json

    def send(self, request: bytes, receiver: Receiver) -> Exchange:
        """Send a rendered request; `receiver` gets the answer, but is never called from inside this call.

        Its `exchange_failed` gets BackendUnavailable (refused, timed out, closed), BackendProtocolError (not HTTP) or
        Overloaded (no file descriptor left).
        """
        exchange = Exchange(request, receiver)
        connection = self._pop_idle()
        if connection is None:
            self.connect(exchange)
        else:
            connection.carry(exchange)
        return exchange

    async def fetch(self, request: bytes) -> tuple[int, bytes]:
        """Returns the status and the whole body of the answer. Raises the errors of `send`'s `exchange_failed`."""
        whole = _WholeAnswer()
        exchange = self.send(request, whole)
        try:
            return await whole.answer
        finally:
            exchange.abort()

    def renew(self) -> None:
        """Send new requests on fresh connections, after one without an answer. Answers under way stay on theirs."""
        for connection in tuple(self._idle):
            connection.close()

    async def aclose(self) -> None:
        """Close every connection; exchanges that are not finished fail."""
        self.is_closed = True
        tasks = tuple(self._connecting)
        for exchange in [exchange for exchange in self._connecting.values() if exchange.connecting is not None]:
            exchange.abort()
            exchange.receiver.exchange_failed(self._closed_error())
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            await self._all_closed.wait()

    # http1_connection.Pool

    def connect(self, exchange: Exchange) -> None:
        """Open a fresh connection for `exchange`."""
        # The task below runs only after everything that arrived together with this request is read. So the request is
        # sent here, as far as possible.
        dial = Dial(self._server)
        if not self.is_closed:
            dial.begin(exchange.request)
        # The task lives only while connecting. It outlives the call that asked for it, so this client owns it:
        # Exchange.abort() and aclose() cancel it, perhaps before it has run at all.
        task = asyncio.get_running_loop().create_task(self._connect(exchange, dial))
        exchange.connecting = task
        self._connecting[task] = exchange
        task.add_done_callback(partial(self._connected, dial))

    def became_idle(self, connection: Connection) -> None:
        self._idle.append(connection)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self.is_closed and not self._open:
            self._all_closed.set()

    def _pop_idle(self) -> Connection | None:
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
            exchange.receiver.exchange_failed(exc)
        else:
            # Not earlier: for a connection that is aborted before create_connection() returns, uvloop never calls
            # connection_lost, and aclose() would wait for it for ever.
            if connection.is_open:
                self._open.add(connection)
                connection.apply_pause()

    async def _open_connection(self, exchange: Exchange, dial: Dial) -> Connection:
        if self.is_closed:
            raise self._closed_error()
        connection = Connection(self, exchange, dial.sent)
        protocol = cast("asyncio.Protocol", connection)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await dial.finish()
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=dial.detach())
        except TimeoutError as exc:
            raise BackendUnavailable(f"{self.peer} accepted no connection in time", was_lost=exchange.was_sent) from exc
        except OSError as exc:
            if exc.errno in OUT_OF_DESCRIPTORS:  # not the engine's fault
                raise Overloaded("The gateway has too many connections open; try again in a moment.") from exc
            raise BackendUnavailable(f"{self.peer} cannot be reached", was_lost=exchange.was_sent) from exc
        return connection

    def _closed_error(self) -> BackendUnavailable:
        return BackendUnavailable(f"{self.peer} is being closed")


class _WholeAnswer:
    """A receiver for short answers: puts status and body into a future."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._data = bytearray()

    def receive_answer(self, head: Head, data: bytes) -> None:
        self.receive_head(head, len(data))(data)
        self.exchange_finished()

    def receive_head(self, head: Head, length: int | None) -> Deliver:
        self._status = head.status
        return self._receive_body

    def _receive_body(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > MAX_FETCHED_BYTES:
            self.exchange_failed(BackendProtocolError(f"a control answer is longer than {MAX_FETCHED_BYTES} bytes"))

    def exchange_finished(self) -> None:
        if not self.answer.done():
            self.answer.set_result((self._status, bytes(self._data)))

    def exchange_failed(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
