"""How a server is reached: where it is in, a connected socket out, and how much of a request has gone ahead on it.

Within one machine a connection stands when connect() returns, whatever it returns: what is sent then is with the server
before any task of ours could have run. Knows sockets and names; no HTTP, no transport.
"""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

REMEMBER_S: Final = 10.0  # for how long a name means what it meant
FOREVER: Final = float("inf")


class Address(NamedTuple):
    family: int
    sockaddr: Any  # as the family's sockets have it


class Server:
    """Where a server is: at a host's TCP port, or, if there is a `path`, at a socket in the file system."""

    def __init__(self, path: str | None, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._address: Address | None = None
        self._until = FOREVER
        if path is not None:
            self._address = Address(socket.AF_UNIX, path)
            return
        try:
            numeric = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (socket.gaierror, UnicodeError):
            self._until = 0.0  # a name: somebody has to be asked what it means
        else:
            (self._address,) = _addresses(numeric)

    @property
    def address(self) -> Address | None:
        """Where it is, as far as nobody has to be asked."""
        return self._address if time.monotonic() < self._until else None

    async def find(self) -> Sequence[Address]:
        """Where it may be, the likeliest first. Raises OSError."""
        if (address := self.address) is not None:
            return (address,)
        loop = asyncio.get_running_loop()
        try:
            return _addresses(await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
        except UnicodeError as exc:
            raise OSError(f"{self._host} cannot be a name") from exc

    def found(self, address: Address) -> None:
        if self._until != FOREVER:
            self._address, self._until = address, time.monotonic() + REMEMBER_S

    def lost(self) -> None:
        """It is not, or no longer, where it was found."""
        if self._until != FOREVER:
            self._until = 0.0


class Dial:
    """One request's way to a socket of its own. `sent`: how many of its bytes have gone ahead.

    Who does not `take` the socket has to `close` this.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self._pending: Any = None  # where the socket is to be connected to, while it is not
        self.sent = 0

    def begin(self, request: bytes) -> None:
        """Send at once what can be. What goes wrong here goes wrong again in `finish`, which says so."""
        if (address := self._server.address) is None:
            return
        try:
            connection = self._connect(address)
            with suppress(BlockingIOError):  # it takes longer to connect
                self.sent = connection.send(request)
                self._pending = None
        except OSError:
            self.close()
            self._server.lost()

    async def finish(self) -> None:
        """Returns when the socket is connected. Raises OSError."""
        if self._socket is not None:
            await self._wait(self._socket)
            return
        failure = OSError(errno.EHOSTUNREACH, "it has no address")
        for address in await self._server.find():
            try:
                await self._wait(self._connect(address))
            except OSError as exc:
                failure = exc
                self.close()
            else:
                self._server.found(address)
                return
        self._server.lost()
        raise failure

    def take(self) -> socket.socket:
        """The socket, for whoever closes it from here on; once `finish` has returned."""
        assert self._socket is not None
        taken, self._socket = self._socket, None
        return taken

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, address: Address) -> socket.socket:
        """Raises OSError."""
        self._socket = connection = socket.socket(address.family, socket.SOCK_STREAM)
        connection.setblocking(False)
        if address.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failure = connection.connect_ex(address.sockaddr)
        if failure not in {0, errno.EINPROGRESS}:
            raise OSError(failure, os.strerror(failure))
        self._pending = address.sockaddr if failure else None
        return connection

    async def _wait(self, connection: socket.socket) -> None:
        if self._pending is not None:
            await asyncio.get_running_loop().sock_connect(connection, self._pending)
            self._pending = None


def _addresses(found: Sequence[tuple[Any, ...]]) -> tuple[Address, ...]:
    """Of getaddrinfo's answers."""
    return tuple(Address(family, sockaddr) for family, _, _, _, sockaddr in found)
