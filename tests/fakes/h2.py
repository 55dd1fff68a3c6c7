"""The server's end of HTTP/2, by hand: frames as a test wants them, right or wrong; the client's bytes, taken apart.

Shares nothing with the client under test but the HPACK library.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 0x20
MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 3, 4, 5

HEAD = ((":status", "200"), ("content-type", "application/grpc"))
OK = (("grpc-status", "0"),)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def settings(values: dict[int, int] | None = None) -> bytes:
    pairs = (values or {}).items()
    return frame(SETTINGS, 0, 0, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in pairs))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_id: int, code: int = 0, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + debug)


def message(content: bytes, *, is_compressed: bool = False) -> bytes:
    """A gRPC message as it lies in DATA."""
    return bytes([is_compressed]) + len(content).to_bytes(4, "big") + content


def split(stream_id: int, data: bytes) -> bytes:
    """DATA frames no longer than what is allowed to everyone."""
    return b"".join(frame(DATA, 0, stream_id, data[at : at + 16_384]) for at in range(0, len(data), 16_384))


def padded(payload: bytes, padding: int) -> bytes:
    return bytes([padding]) + payload + bytes(padding)


@dataclass
class Request:
    """One stream as the server has got it so far."""

    fields: dict[str, str]
    body: bytes = b""
    is_whole: bool = False
    frames: list[int] = field(default_factory=list)  # lengths of its DATA

    @property
    def content(self) -> bytes:
        """The one gRPC message in it."""
        assert self.body[:1] == b"\0"
        assert int.from_bytes(self.body[1:5], "big") == len(self.body) - 5
        return self.body[5:]


class Peer:
    """Takes the client's bytes apart, and encodes header blocks on its own side."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.resets: dict[int, int] = {}
        self.goaways: list[int] = []  # their error codes
        self.pings: list[bytes] = []
        self.acks: list[bytes] = []
        self.updates: list[tuple[int, int]] = []
        self.settings: dict[int, int] = {}
        self.settings_acks = 0
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._rest = b""
        self._has_preface = False

    def block(self, *fields: tuple[str, str]) -> bytes:
        return self._encoder.encode(fields)

    def headers(self, stream_id: int, *fields: tuple[str, str], is_end: bool = False) -> bytes:
        return frame(HEADERS, END_HEADERS | (END_STREAM if is_end else 0), stream_id, self.block(*fields))

    def answer(self, stream_id: int, *contents: bytes, trailers: tuple[tuple[str, str], ...] = OK) -> bytes:
        """A whole answer: head, a DATA frame per message if it is not a long one, trailers."""
        data = b"".join(split(stream_id, message(content)) for content in contents)
        return self.headers(stream_id, *HEAD) + data + self.headers(stream_id, *trailers, is_end=True)

    def feed(self, data: bytes) -> None:
        self._rest += data
        if not self._has_preface and len(self._rest) >= len(PREFACE):
            assert self._rest.startswith(PREFACE)
            self._rest = self._rest[len(PREFACE) :]
            self._has_preface = True
        while self._has_preface and len(self._rest) >= 9:
            end = 9 + int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < end:
                return
            kind, flags = self._rest[3], self._rest[4]
            stream_id = int.from_bytes(self._rest[5:9], "big")
            payload, self._rest = self._rest[9:end], self._rest[end:]
            self._take(kind, flags, stream_id, payload)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        number = int.from_bytes(payload[:4], "big")
        if kind == HEADERS:
            assert flags & END_HEADERS
            self.requests[stream_id] = Request({str(name): str(value) for name, value in self._decoder.decode(payload)})
        elif kind == DATA:
            request = self.requests[stream_id]
            request.frames.append(len(payload))
            request.body += payload
            request.is_whole = bool(flags & END_STREAM)
        elif kind == RST_STREAM:
            self.resets[stream_id] = number
        elif kind == WINDOW_UPDATE:
            self.updates.append((stream_id, number))
        else:
            self._take_connections(kind, flags, payload)

    def _take_connections(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == SETTINGS and flags & ACK:
            self.settings_acks += 1
        elif kind == SETTINGS:
            for at in range(0, len(payload), 6):
                key, value = payload[at : at + 2], payload[at + 2 : at + 6]
                self.settings[int.from_bytes(key, "big")] = int.from_bytes(value, "big")
        elif kind == PING:
            (self.acks if flags & ACK else self.pings).append(payload)
        elif kind == GOAWAY:
            self.goaways.append(int.from_bytes(payload[4:8], "big"))
        else:
            raise AssertionError(f"the client sent a frame of type {kind}")


class Conversation(asyncio.Protocol):
    """One connection of the server's: a Peer on a socket, that answers by `react` whenever something has come."""

    def __init__(self, server: "Server") -> None:
        self.peer = Peer()
        self.is_over = False
        self.answered: set[int] = set()
        self._server = server

    @property
    def unanswered(self) -> list[int]:
        """Ids of the whole requests that `answer` has not been called for."""
        return [
            number for number, request in self.peer.requests.items() if request.is_whole and number not in self.answered
        ]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.conversations.append(self)
        self.send(self._server.greeting)

    def data_received(self, data: bytes) -> None:
        self.peer.feed(data)
        self._server.react(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True

    def send(self, *data: bytes) -> None:
        self._transport.write(b"".join(data))

    def answer(self, stream_id: int, *contents: bytes) -> None:
        self.answered.add(stream_id)
        self.send(self.peer.answer(stream_id, *contents))

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def answer_all(conversation: Conversation) -> None:
    """With the request itself."""
    for stream_id in conversation.unanswered:
        conversation.answer(stream_id, conversation.peer.requests[stream_id].content)


def say_nothing(conversation: Conversation) -> None:
    pass


class Server:
    """A listening socket and its conversations, oldest first."""

    def __init__(self, react: Callable[[Conversation], None] = answer_all, greeting: bytes | None = None) -> None:
        self.react = react
        self.greeting = settings() if greeting is None else greeting
        self.conversations: list[Conversation] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def open(self) -> list[Conversation]:
        return [conversation for conversation in self.conversations if not conversation.is_over]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Server"]:
        await self.listen()
        try:
            yield self
        finally:
            await self.stop()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Conversation(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a server that dies: nothing listens, every connection breaks."""
        if self._server is not None:
            self._server.close()
            for conversation in self.open:
                conversation.abort()
            await self._server.wait_closed()
            self._server = None
