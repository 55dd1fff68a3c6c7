"""Connects to a server. In: its address and a request. Out: a connected socket, and how many bytes are already sent.

Within one machine a connection is made when connect() returns, whatever it returns: bytes sent then are with the server
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

NAME_TTL_S: Final = 10.0  # how long the address of a name is kept
FOREVER: Final = float("inf")


class Address(NamedTuple):
    family: int
    sockaddr: Any  # as the family's sockets have it


class Server:
    """A server's address: a host's TCP port or, if there is a `path`, a socket in the file system."""

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
            self._until = 0.0  # a name, which has to be looked up
        else:
            (self._address,) = _addresses(numeric)

    @property
    def address(self) -> Address | None:
        """The server's address; None if it has to be looked up."""
        return self._address if time.monotonic() < self._until else None

    async def find(self) -> Sequence[Address]:
        """Returns the addresses to try, the likeliest first. Raises OSError."""
        if (address := self.address) is not None:
            return (address,)
        loop = asyncio.get_running_loop()
        try:
            return _addresses(await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
        except UnicodeError as exc:
            raise OSError(f"{self._host} cannot be a name") from exc

    def remember(self, address: Address) -> None:
        """Keep the address for a while: a connection to it was made."""
        if self._until != FOREVER:
            self._address, self._until = address, time.monotonic() + NAME_TTL_S

    def forget(self) -> None:
        """Look the name up again: the server is not, or no longer, at its address."""
        if self._until != FOREVER:
            self._until = 0.0


class Dial:
    """Connects a socket for one request. `sent`: how many bytes of the request are already sent.

    Close it, unless `detach` has returned the socket.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self._pending: Any = None  # the address that the socket is being connected to
        self.sent = 0

    def begin(self, request: bytes) -> None:
        """Send at once as much as possible. An error that occurs here occurs again in `finish`, which raises it."""
        if (address := self._server.address) is None:
            return
        try:
            connection = self._connect(address)
            with suppress(BlockingIOError):  # not connected yet
                self.sent = connection.send(request)
                self._pending = None
        except OSError:
            self.close()
            self._server.forget()

    async def finish(self) -> None:
        """Returns when the socket is connected. Raises OSError."""
        if self._socket is not None:
            await self._wait(self._socket)
            return
        failure = OSError(errno.EHOSTUNREACH, "the server has no address")
        for address in await self._server.find():
            try:
                await self._wait(self._connect(address))
            except OSError as exc:
                failure = exc
                self.close()
            else:
                self._server.remember(address)
                return
        self._server.forget()
        raise failure

    def detach(self) -> socket.socket:
        """Returns the socket, which the caller has to close. Call it only after `finish`."""
        assert self._socket is not None
        detached, self._socket = self._socket, None
        return detached

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, address: Address) -> socket.socket:
        """Begins to connect a socket to `address`. Raises OSError."""
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
    """Converts the rows that getaddrinfo returns."""
    return tuple(Address(family, sockaddr) for family, _, _, _, sockaddr in found)
