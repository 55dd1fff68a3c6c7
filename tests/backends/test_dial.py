"""A request on a fresh connection reaches the server before any other task has run, and always completely."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.backends.dial import Server
from gateway.backends.http1_client import Client
from gateway.errors import BackendUnavailable
from tests.backends.test_http1 import SIZED, AnswerRecorder
from tests.fakes.sink import PATIENCE_S, settled

BODY = b"abcd\r\nef!"
LONG = b'"' + b"x" * 16_000_000 + b'"'  # more than a socket's buffers hold


@asynccontextmanager
async def client_of(url: str, connect_timeout_s: float = 1.0) -> AsyncIterator[Client]:
    client = Client(url, peer="engine", connect_timeout_s=connect_timeout_s)
    try:
        yield client
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await client.aclose()


def listen(path: Path | None = None) -> tuple[socket.socket, str]:
    """A listening socket that accepts nothing by itself, and its URL."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        url = f"http://unix:{path}"
    listener.settimeout(PATIENCE_S)
    return listener, url


@asynccontextmanager
async def meeting(path: Path | None = None) -> AsyncIterator[tuple[Client, socket.socket]]:
    """A client, and what it will connect to."""
    listener, url = listen(path)
    with listener:
        async with client_of(url) as client:
            yield client, listener


def meet(listener: socket.socket) -> tuple[socket.socket, bytes]:
    """Wait for a request without letting the event loop run."""
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE_S)
    return connection, connection.recv(65_536)


@pytest.mark.parametrize("at", ["a port", "a socket"])
async def test_a_request_leaves_at_once_and_its_answer_may_come_at_once(at: str, tmp_path: Path) -> None:
    async with meeting(tmp_path / "engine" if at == "a socket" else None) as (client, listener):
        request = client.render("GET", "/")
        client.send(request, recorder := AnswerRecorder())
        connection, received = meet(listener)
        assert received == request
        connection.sendall(SIZED)
        await recorder.over()
        assert (recorder.status, recorder.data) == (200, BODY)
        # The next request uses the same connection.
        client.send(request, recorder := AnswerRecorder())
        assert connection.recv(65_536) == request
        connection.sendall(SIZED)
        assert (await recorder.over()).status == 200
        connection.close()


async def test_a_server_that_answers_and_closes_before_anything_has_run() -> None:
    async with meeting() as (client, listener):
        for answer, expected in ((SIZED, None), (SIZED[:-1], BackendUnavailable), (b"", BackendUnavailable)):
            client.send(client.render("GET", "/"), recorder := AnswerRecorder())
            connection, _ = meet(listener)
            connection.sendall(answer)
            connection.close()
            await recorder.over()
            assert (type(recorder.error) if recorder.error else None) is expected


async def test_what_a_socket_does_not_take_at_once_follows() -> None:
    async with meeting() as (client, listener):
        request = client.render("POST", "/", LONG)
        client.send(request, recorder := AnswerRecorder())
        connection, received = meet(listener)
        assert received

        def read_on() -> bytes:
            pieces, missing = [received], len(request) - len(received)
            while missing:
                piece = connection.recv(min(missing, 1 << 20))
                assert piece
                pieces.append(piece)
                missing -= len(piece)
            return b"".join(pieces)

        assert await asyncio.to_thread(read_on) == request
        connection.sendall(SIZED)
        assert (await recorder.over()).status == 200
        connection.close()


@pytest.mark.parametrize("turns", range(4))
async def test_a_request_that_is_given_up_is_closed_whenever_that_is(turns: int) -> None:
    async with meeting() as (client, listener):
        exchange = client.send(client.render("GET", "/"), recorder := AnswerRecorder())
        for _ in range(turns):
            await asyncio.sleep(0)
        exchange.abort()
        connection, received = meet(listener)
        assert received
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(connection.recv, 1) == b""
        connection.close()
        assert (recorder.status, recorder.error) == (None, None)
        await settled(lambda: repr(client).endswith("connecting=0 busy=0 idle=0>"), "nothing left")


async def test_a_client_that_is_closed_meanwhile_fails_the_exchange_once() -> None:
    async with meeting() as (client, listener):
        client.send(client.render("GET", "/"), recorder := AnswerRecorder())
        await client.aclose()
        assert "is being closed" in str(recorder.error)
        client.send(client.render("GET", "/"), late := AnswerRecorder())
        assert "is being closed" in str((await late.over()).error)
        connection, received = meet(listener)
        assert received
        connection.close()
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):  # the late one was not sent
            listener.accept()


async def test_a_server_that_cannot_be_reached_at_once_gets_the_request_once_it_can() -> None:
    # A connection to a listener with a full backlog is made only after an accept: as slow as a distant server.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as before:
        listener.settimeout(PATIENCE_S)
        before.connect(listener.getsockname())
        async with client_of(f"http://127.0.0.1:{listener.getsockname()[1]}", PATIENCE_S) as client:
            request = client.render("GET", "/")
            exchange = client.send(request, recorder := AnswerRecorder())
            await asyncio.sleep(0.1)
            assert exchange.connecting is not None
            listener.accept()[0].close()
            connection, received = await asyncio.to_thread(meet, listener)
            assert received == request
            connection.sendall(SIZED)
            assert (await recorder.over()).status == 200
            connection.close()


async def test_a_socket_with_too_many_waiting_is_unavailable(tmp_path: Path) -> None:
    path = str(tmp_path / "engine")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as before:
        listener.bind(path)
        listener.listen(0)
        before.connect(path)
        async with client_of(f"http://unix:{path}") as client:
            client.send(client.render("GET", "/"), recorder := AnswerRecorder())
            await recorder.over()
            assert (type(recorder.error), str(recorder.error)) == (BackendUnavailable, "engine cannot be reached")


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    listener, url = listen()
    listener.close()
    stale, stale_url = listen(tmp_path / "left behind")
    stale.close()
    no_name = f"http://{'a' * 64}.example:80"
    for address in (url, stale_url, f"http://unix:{tmp_path}/never", no_name):
        async with client_of(address) as client:
            client.send(client.render("GET", "/"), recorder := AnswerRecorder())
            await recorder.over()
            assert (type(recorder.error), str(recorder.error)) == (BackendUnavailable, "engine cannot be reached")


async def test_a_name_is_asked_for_once_in_a_while_and_again_when_nobody_is_there() -> None:
    listener, _ = listen()
    port = listener.getsockname()[1]
    with listener:
        async with client_of(f"http://localhost:{port}") as client:
            client.send(client.render("GET", "/"), recorder := AnswerRecorder())
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):  # the name is not looked up yet
                listener.accept()
            listener.settimeout(PATIENCE_S)
            connection, _ = await asyncio.to_thread(meet, listener)
            connection.sendall(SIZED)
            connection.close()
            assert (await recorder.over()).status == 200
            client.send(client.render("GET", "/"), recorder := AnswerRecorder())
            meet(listener)[0].close()
            assert type((await recorder.over()).error) is BackendUnavailable


async def test_where_a_name_was_found_is_forgotten() -> None:
    server = Server(None, "localhost", 1)
    assert server.address is None
    (first, *_) = await server.find()
    server.remember(first)
    assert server.address == first
    server.forget()
    assert server.address is None
    fixed = Server(None, "127.0.0.1", 1)
    fixed.forget()
    assert fixed.address == await _only(fixed)


async def _only(server: Server) -> object:
    (place,) = await server.find()
    return place
