"""What one exchange with a client owes the others: nobody who stands still keeps anything."""

import asyncio

import pytest
from starlette.types import Message, Scope

from gateway.api.client import Client, ClientLeft
from gateway.settings import LimitSettings

SCOPE: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


async def hear_nothing() -> Message:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it never comes


async def test_a_client_that_takes_not_even_the_headers_has_left() -> None:
    async def send(_message: Message) -> None:
        await asyncio.get_running_loop().create_future()

    client = Client(SCOPE, hear_nothing, send, LimitSettings(client_write_timeout_s=0.05))
    with pytest.raises(ClientLeft):
        await client.start(200, [])


class Connection:
    """As uvicorn's: `send` is a method of the object that has the transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    async def send(self, _message: Message) -> None:
        self.transport.close()
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")


async def test_a_transport_that_is_closed_already_is_a_client_that_left() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with server:
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        client = Client(SCOPE, hear_nothing, Connection(transport).send, LimitSettings())
        with pytest.raises(ClientLeft):
            await client.write(b"text", is_last=True)
