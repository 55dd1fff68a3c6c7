"""An exchange over ASGI, for servers other than ours and for requests that our connections do not answer themselves.

In: scope and messages. Out: the request's body, read within the limits, and the answer's messages. Knows no OpenAI.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from gateway.access import Caller
from gateway.client_http.exchange import ClientLeft, Listener
from gateway.client_http.head import RequestHead
from gateway.client_http.intake import Intake
from gateway.errors import BodyTooLarge, GatewayError, Overloaded, RequestTimeout

T = TypeVar("T")

CRLF = b"\r\n"
MANY_MESSAGES = 64
# Of a write that takes long only so much is held by ASGI at a time: the time limit is for each slice.
SLICE_BYTES = 64 * 1024


class AsgiExchange:
    """An Exchange: read the body once, then answer inside `answering`, which sends what is written."""

    takes_chunks = False

    def __init__(self, scope: Scope, receive: Receive, send: Send, intake: Intake) -> None:
        path, query = scope["raw_path"], scope["query_string"]
        self.method: str = scope["method"]
        self.client: str = (scope.get("client") or ("", 0))[0]
        self.head = RequestHead(scope["path"], path + b"?" + query if query else path, tuple(scope["headers"]))
        self.body: bytes | bytearray = b""
        self.error: GatewayError | None = None
        self.caller: Caller | None = None
        self.has_left = False
        self._receive = receive
        self._send = send
        self._intake = intake
        self._listener: Listener | None = None
        self._spawned: set[asyncio.Task[Any]] = set()  # Any: of any result
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._is_over = False
        self._is_paused = False

    async def read_body(self) -> None:
        """Reads the body. Raises BodyTooLarge, RequestTimeout or Overloaded, without reading on, and ClientLeft."""
        self._check_size(self.head.length)
        body = bytearray()
        try:
            async with asyncio.timeout(self._intake.limits.body_timeout_s):
                while await self._read_more(body):
                    pass
        except TimeoutError as exc:
            raise RequestTimeout("The request did not arrive in time.") from exc
        finally:
            self._intake.release(len(body))
        self.body = bytes(body)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Ends when what was written has been sent, or the client has left. If cancelled, the client counts as gone."""
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(self._watch())
            try:
                yield
                await self._send_answer()
            finally:
                self._leave()
                watcher.cancel()
                for task in self._spawned:
                    task.cancel()

    def attach(self, listener: Listener) -> None:
        self._listener = listener

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    # The answer

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool = False) -> None:
        sized = () if length is None else ((b"content-length", b"%d" % length),)
        fields = [tuple(line.split(b": ", 1)) for line in CRLF.join(lines).split(CRLF)]
        self._put({"type": "http.response.start", "status": status, "headers": [*fields, *sized]})

    def write(self, data: bytes) -> None:
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if not self._is_paused and len(self._messages) > MANY_MESSAGES and self._listener is not None:
            self._is_paused = True
            self._listener.paused()

    def splice(self) -> Callable[[bytes], None]:
        return self.write

    def lost(self) -> None:
        self._leave()

    def finish(self, data: bytes = b"") -> None:
        self._put({"type": "http.response.body", "body": data, "more_body": False})
        self._is_over = True
        self._listener = None

    def abort(self) -> None:
        """Ends the answer early. ASGI has no message for it; servers close the connection if an app returns midway."""
        self._messages.clear()
        self._is_over = True
        self._listener = None
        self._changed.set()

    # Between the answer and the server

    def _put(self, message: Message) -> None:
        if not self._is_over:
            self._messages.append(message)
            self._changed.set()

    def _leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            listener = self._listener
            self.abort()
            if listener is not None:
                listener.left()

    async def _send_answer(self) -> None:
        """Sends the messages. Returns when the end has been sent or the client has left."""
        while self._messages or not self._is_over:
            await self._changed.wait()
            self._changed.clear()
            while self._messages:
                await self._send_in_time(self._messages.popleft())
            if self._is_paused:
                self._is_paused = False
                if self._listener is not None:
                    self._listener.resumed()

    async def _send_in_time(self, message: Message) -> None:
        try:
            for part in _slices(message):
                async with asyncio.timeout(self._intake.limits.client_write_timeout_s):
                    await self._send(part)
        # OSError: what ASGI servers raise for a client that is gone. RuntimeError: uvloop does, through uvicorn.
        except (TimeoutError, OSError, RuntimeError):
            self._leave()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    async def _read_more(self, body: bytearray) -> bool:
        """Adds one message's data to `body`. Returns whether there is more."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        data = message.get("body", b"")
        self._check_size(len(body) + len(data))
        if not self._intake.hold(len(data)):
            raise Overloaded("Too many bodies are arriving at once; try again in a moment.")
        body += data
        return bool(message.get("more_body", False))

    def _check_size(self, size: int) -> None:
        if size > self._intake.limits.max_body_bytes:
            raise BodyTooLarge(f"The body is larger than {self._intake.limits.max_body_bytes} bytes.")


def _slices(message: Message) -> Iterator[Message]:
    """Yields a long body in parts: the time limit is for each."""
    body = message.get("body", b"")
    if len(body) <= SLICE_BYTES:
        yield message
        return
    for start in range(0, len(body), SLICE_BYTES):
        end = start + SLICE_BYTES
        yield {**message, "body": body[start:end], "more_body": message["more_body"] or end < len(body)}
