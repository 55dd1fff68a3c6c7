"""One exchange with a client over ASGI: its body read within a bound, its leaving noticed, a way out for the answer.

For servers other than ours, and for what is no generation. Knows nothing of OpenAI.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from gateway.api.errors import BodyTooLarge, RequestTimeout
from gateway.api.intake import Intake
from gateway.api.outlet import AsgiOutlet, Listener, Outlet
from gateway.api.request import Request
from gateway.errors import Overloaded


class ClientLeft(Exception):
    """The client closed its connection, or took nothing for so long that we did. Not an error: nobody hears of it."""


class OutletUser(Listener, Protocol):
    """Who answers the client."""

    outlet: Outlet


class Client:
    """Read the body once, then write an answer while `attached`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, intake: Intake) -> None:
        path, query = scope["raw_path"], scope["query_string"]
        self.method: str = scope["method"]
        self._address: str = (scope.get("client") or ("", 0))[0]
        self.request = Request(scope["path"], path + b"?" + query if query else path, tuple(scope["headers"]))
        self._receive = receive
        self._send = send
        self._intake = intake
        self._limits = intake.limits

    async def read_body(self) -> bytes:
        """Raises BodyTooLarge, RequestTimeout or Overloaded, without reading on, and ClientLeft."""
        self._check_size(self.request.length)
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while await self._read_on(body):
                    pass
        except TimeoutError as exc:
            raise RequestTimeout("The request did not arrive in time.") from exc
        finally:
            self._intake.release(len(body))
        return bytes(body)

    @asynccontextmanager
    async def attached(self, user: OutletUser) -> AsyncIterator[None]:
        """Gives `user` a way out for as long as it works; on leaving, what it wrote has been handed over."""
        outlet = AsgiOutlet(self._send, user, self._limits.client_write_timeout_s, self._address)
        user.outlet = outlet
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

    async def _read_on(self, body: bytearray) -> bool:
        """Whether there is more of it."""
        message = await self._next_message()
        data = message.get("body", b"")
        self._check_size(len(body) + len(data))
        if not self._intake.hold(len(data)):
            raise Overloaded("Too many bodies are arriving at once; try again in a moment.")
        body += data
        return bool(message.get("more_body", False))

    async def _next_message(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        return message

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise BodyTooLarge(f"The body is larger than {self._limits.max_body_bytes} bytes.")
