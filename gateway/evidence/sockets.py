"""httpx by TCP, or through a socket in the file system that a request names. In: requests. Out: their answers."""

import httpx

from gateway.address import Target

SOCKET = "socket"  # of a request's extensions


class Transport(httpx.AsyncBaseTransport):
    """One pool of connections for TCP and one for each socket; `through` says which."""

    def __init__(self) -> None:
        self._by_socket: dict[str | None, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._at(request.extensions.get(SOCKET)).handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._by_socket.values():
            await transport.aclose()

    def _at(self, socket: str | None) -> httpx.AsyncHTTPTransport:
        if socket not in self._by_socket:  # whose certificates take 30 ms to load, for nothing on a socket
            self._by_socket[socket] = httpx.AsyncHTTPTransport(verify=socket is None, uds=socket)
        return self._by_socket[socket]


def through(target: Target) -> dict[str, str | None]:
    """The extensions of a request that is to go there."""
    return {SOCKET: target.socket_path}
