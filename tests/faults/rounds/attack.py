"""Rude clients, in a process of their own and from an address of their own.

In: a name and a port. Out: connections that are slow, silent or not read, or aborted uploads, until it is ended.
"""

import asyncio
import itertools
import json
import multiprocessing
import random
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event

import uvloop

from deploy.ports import LOCALHOST

OWN_ADDRESS = "127.0.0.2"  # clients without keys take turns by address
PATH = "/v1/completions"
HELD = 1000  # connections
PAUSE_S = 0.2  # before a connection that has ended is opened again
UNREAD_S = (8.0, 20.0)  # of a connection that is not read: those of all shall not end together
UNREAD_TOKENS = 48_000  # 96 kB at once, which fills the connection
SEGMENT = 1448  # bytes, as on Ethernet: with those of a loopback device the kernel takes megabytes for an unread stream
RECEIVE_BUFFER = 4096  # bytes of what is not read
STARTS_WITHIN_S = 60.0


def describe(max_tokens: int) -> bytes:
    """Returns the body of a streamed request."""
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": max_tokens, "stop_token_ids": [], "stream": True}
    return json.dumps(body).encode()


def head(length: int) -> bytes:
    lines = (f"POST {PATH} HTTP/1.1", "host: localhost", "content-type: application/json", f"content-length: {length}")
    return "\r\n".join((*lines, "", "")).encode()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A byte of the head a second."""
    for byte in itertools.chain(head(10)[:-4] + b"\r\nx-slow: ", itertools.repeat(ord("a"))):
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(1.0)


async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = describe(UNREAD_TOKENS)
    writer.write(head(len(body)) + body)
    await asyncio.sleep(random.uniform(*UNREAD_S))


def upload(size: int) -> "Visit":
    """All but the last byte of a body, then a reset."""

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(size) + b" " * (size - 1))
        await writer.drain()

    return visit


Visit = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """`connections` that are kept, or `rate` of them a second."""

    visit: Visit
    connections: int = 0
    rate: float = 0.0


ATTACKS: Mapping[str, Attack | None] = {
    "none": None,
    "1,000 heads, a byte a second": Attack(drip, connections=HELD),
    "1,000 that send nothing": Attack(send_nothing, connections=HELD),
    "1,000 unread streams": Attack(read_nothing, connections=HELD),
    "64 kB aborted, 200 a second": Attack(upload(64 * 1024), rate=200.0),
    "8 MB aborted, 10 a second": Attack(upload(8 * 1024 * 1024), rate=10.0),
}


@contextmanager
def attacked(name: str, port: int) -> Iterator[None]:
    """Under way inside the block, ended after it."""
    if ATTACKS[name] is None:
        yield
        return
    context = multiprocessing.get_context("spawn")
    is_under_way = context.Event()
    process = context.Process(target=run, args=(name, port, is_under_way), daemon=True)
    process.start()
    try:
        assert is_under_way.wait(STARTS_WITHIN_S), "the attack does not begin"
        yield
    finally:
        process.kill()
        process.join()


def run(name: str, port: int, is_under_way: Event) -> None:
    attack = ATTACKS[name]
    assert attack is not None
    uvloop.run(_attack(attack, port, is_under_way))


async def _attack(attack: Attack, port: int, is_under_way: Event) -> None:
    opened = asyncio.Semaphore(0)

    async def keep() -> None:
        while True:
            await _visit(attack.visit, port, opened)
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(attack.connections):
            group.create_task(keep())
        for _ in range(attack.connections):
            await opened.acquire()
        is_under_way.set()
        if attack.rate:
            begun = asyncio.get_running_loop().time()
            for number in itertools.count():
                await asyncio.sleep(begun + number / attack.rate - asyncio.get_running_loop().time())
                group.create_task(_visit(attack.visit, port, opened))


async def _visit(visit: Visit, port: int, opened: asyncio.Semaphore) -> None:
    with suppress(OSError):  # the server has ended it
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        connection.bind((OWN_ADDRESS, 0))
        await asyncio.get_running_loop().sock_connect(connection, (LOCALHOST, port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=1)  # what is not read stays unread
        opened.release()
        try:
            await visit(reader, writer)
        finally:
            writer.transport.abort()
