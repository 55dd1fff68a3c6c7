"""One HTTP exchange with a client: its body read within a bound, its answer written within a time, its leaving noticed.

Speaks ASGI, and one word of uvicorn's that ASGI lacks (abort). Knows nothing of OpenAI.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Never, TypeAlias

from starlette.types import Message, Receive, Scope, Send

from gateway.api.errors import BodyTooLarge
from gateway.settings import LimitSettings

# A client may be slow, but not stand still: the time limit is for each slice, not for all that has piled up.
SLICE_BYTES = 64 * 1024

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client closed its connection, or took nothing for so long that we did. Not an error: nobody hears of it."""


class Client:
    """Read the body once, then write an answer; `watch` runs beside the writing."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: LimitSettings) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._limits = limits
        # uvicorn's `send` is a method of the object with the transport.
        self._transport: asyncio.Transport | None = getattr(getattr(send, "__self__", None), "transport", None)

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def read_body(self) -> bytes:
        """Raises BodyTooLarge, without reading on, and ClientLeft."""
        with suppress(ValueError):  # a nonsensical length is the server's affair
            self._check_size(int(self._headers.get(b"content-length", b"0")))
        body, is_whole = bytearray(), False
        while not is_whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body += message.get("body", b"")
            self._check_size(len(body))
            is_whole = not message.get("more_body", False)
        return bytes(body)

    async def watch(self) -> Never:
        """Raises ClientLeft as soon as the client has left; never returns."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientLeft

    async def start(self, status: int, headers: Headers) -> None:
        """Raises ClientLeft when what the client was sent before is not taken in time."""
        await self._send_in_time({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, is_last: bool) -> None:
        """Returns once the transport has it. Raises ClientLeft when the client does not take a slice in time."""
        for start in range(0, len(body) or 1, SLICE_BYTES):
            end = start + SLICE_BYTES
            is_more = not is_last or end < len(body)
            await self._send_in_time({"type": "http.response.body", "body": body[start:end], "more_body": is_more})

    async def _send_in_time(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._limits.client_write_timeout_s):
                await self._send(message)
        except TimeoutError:
            await self._abort()
        except RuntimeError as exc:
            # uvloop's for a transport closed before uvicorn heard of it, as one is that leaves while it pipelines.
            if self._transport is None or not self._transport.is_closing():
                raise
            raise ClientLeft from exc

    async def _abort(self) -> Never:
        # ASGI can only close a connection after what is buffered has been sent, and a stalled client takes nothing:
        # it would keep its socket and buffer for ever.
        if self._transport is not None:
            self._transport.abort()
            await self.watch()
        raise ClientLeft

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise BodyTooLarge(f"The body is larger than {self._limits.max_body_bytes} bytes.")
