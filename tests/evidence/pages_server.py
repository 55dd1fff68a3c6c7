"""An HTTP server that answers a few GETs just as it is told, misbehaviour included."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HEADERS_END = b"\r\n\r\n"


@dataclass
class PagesServer:
    """`pages`: path to (status, body). Every answer waits until `is_open`; what is not there is a 404.

    `socket`: where to listen in the file system, instead of on a port.
    """

    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    port: int = 0
    asked: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    socket: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.socket is None else f"http://unix:{self.socket}:"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["PagesServer"]:
        """On the same port as before, if there was one."""
        self.is_open.set()
        server = await self._listen()
        try:
            yield self
        finally:
            server.close()
            self.is_open.set()
            for writer in list(self._writers):
                writer.close()
            await server.wait_closed()

    async def _listen(self) -> asyncio.Server:
        if self.socket is not None:
            return await asyncio.start_unix_server(self._serve, self.socket)
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        return server

    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = (await reader.readuntil(HEADERS_END)).decode()
                    self.keys += re.findall(r"(?im)^authorization: (.*)\r$", head)
                    await self._answer(head.split(" ")[1], writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        self.asked.append(path)
        await self.is_open.wait()
        status, body = self.pages.get(path, (404, b'{"detail":"Not Found"}'))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
