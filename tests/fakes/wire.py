"""A wire between an adapter and its engine that a test can cut, freeze and mend; both ends stay alive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast


class Wire:
    """Listens on `port`, or at `socket` in the file system, and carries every connection to the port `upstream`."""

    def __init__(self, upstream: int, socket: Path | None = None) -> None:
        self._upstream = upstream
        self._socket = socket
        self._ends: set[_End] = set()
        self._server: asyncio.Server | None = None
        self._is_frozen = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self._socket is None else f"http://unix:{self._socket}:"

    @property
    def connections(self) -> int:
        return len(self._ends) // 2

    @asynccontextmanager
    async def laid(self) -> AsyncIterator["Wire"]:
        await self.mend()
        try:
            yield self
        finally:
            await self.refuse()

    async def mend(self) -> None:
        """Accept connections (again), at the same place as before."""
        loop = asyncio.get_running_loop()
        if self._socket is not None:
            self._server = await loop.create_unix_server(lambda: _Near(self), self._socket)
            return
        self._server = await loop.create_server(lambda: _Near(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection; new ones are accepted."""
        for end in tuple(self._ends):
            end.abort()

    async def refuse(self) -> None:
        """Break every connection and refuse new ones, as a dead server does."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None

    def freeze(self) -> None:
        """Accept connections and carry nothing, as a machine does that has been unplugged."""
        self._is_frozen = True
        for end in self._ends:
            end.is_dead = True

    def thaw(self) -> None:
        """Carry what comes on new connections. Those that were open are dead for good, and nobody has been told."""
        self._is_frozen = False

    async def connect_upstream(self, near: "_Near") -> None:
        await asyncio.get_running_loop().create_connection(partial(_End, self, near), "127.0.0.1", self._upstream)

    @property
    def is_frozen(self) -> bool:
        return self._is_frozen

    def joined(self, end: "_End") -> None:
        self._ends.add(end)

    def parted(self, end: "_End") -> None:
        self._ends.discard(end)


class _End(asyncio.Protocol):
    def __init__(self, wire: Wire, other: "_End | None" = None) -> None:
        self._wire = wire
        self._other = other
        self._transport: asyncio.Transport
        self._waiting = b""
        self.is_dead = False

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._wire.joined(self)
        if self._other is not None:
            self._other.join(self)

    def join(self, other: "_End") -> None:
        self._other = other
        other.write(self._waiting)
        if self._transport.is_closing():
            other.abort()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.is_dead or self._wire.is_frozen:
            return
        if self._other is None:
            self._waiting += data
        else:
            self._other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.parted(self)
        if self._other is not None:
            self._other.abort()


class _Near(_End):
    """The end that an adapter connected to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._wire.is_frozen:
            self._connecting = asyncio.get_running_loop().create_task(self._wire.connect_upstream(self))
