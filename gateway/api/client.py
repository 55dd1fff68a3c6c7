"""One HTTP exchange with a client: its request read within a bound, its leaving noticed, a way out for the answer.

Speaks ASGI; where uvicorn serves, answers go past it (outlet.py). Knows nothing of OpenAI.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from gateway.api.errors import BodyTooLarge
from gateway.api.outlet import AsgiOutlet, DirectOutlet, Listener, Outlet, find_cycle
from gateway.core import Fields
from gateway.settings import LimitSettings


class ClientLeft(Exception):
    """The client closed its connection, or took nothing for so long that we did. Not an error: nobody hears of it."""


class OutletUser(Listener, Protocol):
    """Who answers the client."""

    outlet: Outlet


class Client:
    """`fields`: the request's header fields, names in lower case. `target`: its path and query as they were sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: LimitSettings) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.fields: Fields = scope["headers"]
        self._scope = scope
        self._headers: dict[bytes, bytes] = dict(self.fields)
        self._receive = receive
        self._send = send
        self._limits = limits
        self._cycle = find_cycle(send)

    @property
    def target(self) -> bytes:
        path: bytes = self._scope["raw_path"]
        query: bytes = self._scope["query_string"]
        return path + b"?" + query if query else path

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def attach(self, user: OutletUser) -> bool:
        """Give `user` a way out past ASGI, where there is one."""
        if self._cycle is None:
            return False
        user.outlet = DirectOutlet(self._cycle, user, self._limits.client_write_timeout_s)
        return True

    def attached(self, user: OutletUser) -> AbstractAsyncContextManager[None]:
        """Gives `user` a way out for as long as it works; on leaving, what it wrote has been handed over."""
        return nullcontext() if self.attach(user) else self._attached_by_asgi(user)

    def whole_body(self) -> bytes | None:
        """The body, if all of it has come already and its size needs no waiting. Raises BodyTooLarge."""
        cycle = self._cycle
        if cycle is None or cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        self._check_size(len(body))
        return body

    async def read_body(self) -> bytes:
        """Raises BodyTooLarge, without reading on, and ClientLeft."""
        if (length := self._headers.get(b"content-length")) is not None:
            with suppress(ValueError):  # a nonsensical length is the server's affair
                self._check_size(int(length))
        message = await self._next_message()
        if not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            self._check_size(len(body))
            return body
        return await self._read_on(message.get("body", b""))

    async def _read_on(self, start: bytes) -> bytes:
        body, is_whole = bytearray(start), False
        while not is_whole:
            self._check_size(len(body))
            message = await self._next_message()
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        self._check_size(len(body))
        return bytes(body)

    async def _next_message(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        return message

    @asynccontextmanager
    async def _attached_by_asgi(self, user: OutletUser) -> AsyncIterator[None]:
        user.outlet = outlet = AsgiOutlet(self._send, user, self._limits.client_write_timeout_s)
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(self._watch(outlet))
            pump = tasks.create_task(outlet.pump())
            try:
                yield
                await pump
            finally:
                pump.cancel()
                watcher.cancel()

    async def _watch(self, outlet: AsgiOutlet) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        outlet.leave()

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise BodyTooLarge(f"The body is larger than {self._limits.max_body_bytes} bytes.")
