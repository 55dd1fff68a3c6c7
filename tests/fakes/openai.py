"""An OpenAI engine on a real socket whose answers a test writes byte for byte.

It reads whole requests; what follows is the test's script. /health is answered by itself.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import orjson

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
STREAM = SSE + b"transfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def chunked(*payloads: bytes) -> bytes:
    return b"".join(map(chunk, payloads)) + LAST_CHUNK


def sized(body: bytes, status: int = 200, content_type: str = "application/json", fields: bytes = b"") -> bytes:
    """A whole answer with content-length."""
    head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + fields + b"\r\n" + body


def event(content: str | None, finish_reason: str | None = None) -> bytes:
    """A chat.completion.chunk, about as long as vLLM's."""
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _data({"choices": [choice]})


def usage_event(prompt_tokens: int, completion_tokens: int) -> bytes:
    total = prompt_tokens + completion_tokens
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": total, "completion_tokens": completion_tokens}
    return _data({"choices": [], "usage": usage})


def _data(fields: dict[str, object]) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


@dataclass(slots=True, eq=False)
class Exchange:
    """One request as it came, and the means to answer it."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)
    written: int = 0
    was_left: bool = False

    @property
    def request_line(self) -> bytes:
        return self.head.partition(b"\r\n")[0]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:-2]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    def field(self, name: bytes) -> list[bytes]:
        return [value for field_name, value in self.fields if field_name == name]

    async def say(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Write each piece by itself and wait for the gateway to take it. Raises ConnectionError once that has left."""
        for piece in pieces:
            if self.writer.transport.is_closing():
                raise ConnectionResetError
            self.writer.write(piece)
            await self.writer.drain()
            self.written += len(piece)
            await asyncio.sleep(pause_s)

    async def left(self) -> None:
        """Wait until the gateway has closed the connection."""
        with suppress(ConnectionError):
            await self.reader.read()
        self.was_left = True

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        """Reset the connection."""
        transport = cast("asyncio.Transport", self.writer.transport)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )
        transport.abort()


Answer: TypeAlias = Callable[[Exchange], Awaitable[None]]


def saying(*pieces: bytes, pause_s: float = 0.0, then_close: bool = False) -> Answer:
    """Answer every request with these pieces."""

    async def answer(exchange: Exchange) -> None:
        await exchange.say(*pieces, pause_s=pause_s)
        if then_close:
            exchange.close()

    return answer


class FakeOpenAI:
    """`answer` is awaited for each request but probes; `exchanges` holds them, `live` those being answered."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or saying(sized(b"{}"))
        self.health = 200
        self.answers_probes = True
        self.port = 0
        self.exchanges: list[Exchange] = []
        self.live: set[Exchange] = set()
        self.accepted = 0  # connections, ever
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeOpenAI"]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break every connection and refuse new ones, as a dead server does."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._connections):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._connections.add(writer)
        try:
            while not writer.transport.is_closing():
                await self._answer_next(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        exchange = Exchange(head, b"", reader, writer)
        if exchange.request_line.startswith(b"GET "):
            if not self.answers_probes:
                await exchange.left()
                return
            writer.write(sized(b"", self.health))
            return
        (length,) = exchange.field(b"content-length")
        exchange.body = await reader.readexactly(int(length))
        self.exchanges.append(exchange)
        self.live.add(exchange)
        try:
            await self.answer(exchange)
        finally:
            self.live.discard(exchange)
