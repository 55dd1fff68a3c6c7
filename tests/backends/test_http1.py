"""The HTTP/1.1 client, with a server that sends any bytes, cut anywhere."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.backends.http1_client import Client
from gateway.backends.http1_connection import MAX_INTERIM, Deliver
from gateway.backends.http1_framing import Head
from gateway.errors import BackendProtocolError, BackendUnavailable, GatewayError
from tests.fakes.openai import Answer, Exchange, FakeOpenAI, saying
from tests.fakes.sink import settled

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n6;ext=1\r\nd\r\nef!\r\n0\r\nTrailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcd\r\nef!"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
EARLY_HINT = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED


class AnswerRecorder:
    """A receiver that records its answer."""

    def __init__(self) -> None:
        self.data = b""
        self.reads = 0
        self._status: int | None = None
        self.status: int | None = None
        self.error: GatewayError | None = None

    def receive_answer(self, head: Head, data: bytes) -> None:
        deliver = self.receive_head(head, len(data))
        if data:
            deliver(data)
        self.exchange_finished()

    def receive_head(self, head: Head, length: int | None) -> Deliver:
        assert self._status is None
        self._status = head.status
        return self._body

    def _body(self, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def exchange_finished(self) -> None:
        assert self.status is None
        assert self.error is None
        self.status = self._status

    def exchange_failed(self, error: GatewayError) -> None:
        assert self.status is None
        assert self.error is None
        self.error = error

    async def over(self) -> "AnswerRecorder":
        await settled(lambda: self.status is not None or self.error is not None, "the answer over")
        return self


@asynccontextmanager
async def talking_to(answer: Answer) -> AsyncIterator[tuple[Client, FakeOpenAI]]:
    async with FakeOpenAI(answer).serving() as server:
        client = Client(server.url, peer="engine", connect_timeout_s=1.0)
        try:
            yield client, server
        finally:
            await client.aclose()


def post(client: Client) -> bytes:
    return client.render("POST", "/", b"{}")


async def ask(client: Client) -> AnswerRecorder:
    recorder = AnswerRecorder()
    client.send(post(client), recorder)
    return await recorder.over()


async def test_chunks_that_come_in_one_read_are_handed_on_in_one_call() -> None:
    async with talking_to(saying(CHUNKED)) as (client, _):
        assert (await ask(client)).reads == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has it")
@pytest.mark.parametrize(("server", "acknowledges_at_once"), [("uvicorn", False), ("llama.cpp", True)])
async def test_tokens_are_acknowledged_late_where_the_server_does_not_wait_for_that(
    server: str, acknowledges_at_once: bool
) -> None:
    head = f"HTTP/1.1 200 OK\r\nServer: {server}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    async with talking_to(saying(head, b"3\r\nabc\r\n", b"0\r\n\r\n")) as (client, _):
        assert (await ask(client)).data == b"abc"
        (connection,) = client._open
        at_once = connection._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        assert bool(at_once) is acknowledges_at_once


async def test_a_server_that_closes_after_its_answer_gets_a_new_connection_each_time() -> None:
    answer = SIZED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    async with talking_to(saying(answer, then_close=True)) as (client, server):
        for _ in range(3):
            assert (await ask(client)).status == 200
        assert server.accepted == 3


async def test_a_kept_connection_that_proves_dead_is_replaced_once_without_a_word() -> None:
    async with talking_to(saying(SIZED, then_close=True)) as (client, server):
        assert (await ask(client)).status == 200
        # Send in the same turn of the loop, in which the server's close may or may not be noticed.
        for _ in range(20):
            assert (await ask(client)).status == 200
        assert server.accepted >= 2


async def test_a_request_that_a_kept_connection_swallows_is_sent_again_on_a_fresh_one() -> None:
    async def answer(exchange: Exchange) -> None:
        if len(server.exchanges) == 2:
            exchange.close()  # read, and never answered
        else:
            await exchange.say(SIZED)

    async with talking_to(answer) as (client, server):
        first, second = await ask(client), await ask(client)
        assert (first.status, second.status) == (200, 200)
        assert (server.accepted, len(server.exchanges)) == (2, 3)


async def test_a_request_whose_server_dies_later_on_a_kept_connection_is_not_sent_again() -> None:
    async def answer(exchange: Exchange) -> None:
        if len(server.exchanges) == 1:
            await exchange.say(SIZED)
        else:
            await asyncio.sleep(0.2)
            exchange.close()

    async with talking_to(answer) as (client, server):
        await ask(client)
        error = (await ask(client)).error
        assert isinstance(error, BackendUnavailable)
        assert error.was_lost
        assert (server.accepted, len(server.exchanges)) == (1, 2)


async def test_a_server_that_cannot_be_reached_has_had_no_request() -> None:
    async with talking_to(saying(SIZED)) as (client, server):
        await server.stop()
        error = (await ask(client)).error
        assert isinstance(error, BackendUnavailable)
        assert not error.was_lost


async def test_a_fresh_connection_that_closes_without_an_answer_is_not_tried_again() -> None:
    async with talking_to(saying(then_close=True)) as (client, server):
        assert type((await ask(client)).error) is BackendUnavailable
        assert server.accepted == 1


async def test_a_reused_connection_that_has_begun_to_answer_is_not_tried_again() -> None:
    async def answer(exchange: Exchange) -> None:
        if len(server.exchanges) == 1:
            await exchange.say(SIZED)
        else:
            await exchange.say(SIZED[:-1])
            exchange.close()

    async with talking_to(answer) as (client, server):
        await ask(client)
        recorder = await ask(client)
        assert type(recorder.error) is BackendUnavailable
        assert recorder.data == b"abcd\r\nef"
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("nonsense", "before"),
    [
        (b"HELLO\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", b"abc"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b""),
    ],
)
async def test_nonsense_is_a_protocol_error_after_what_came_before_it(nonsense: bytes, before: bytes) -> None:
    async with talking_to(saying(nonsense)) as (client, _):
        recorder = await ask(client)
        assert (recorder.data, type(recorder.error)) == (before, BackendProtocolError)


@pytest.mark.parametrize("surplus", [SIZED, b"garbage", EMPTY])
async def test_an_answer_too_many_is_never_taken_for_the_next_ones(surplus: bytes) -> None:
    async with talking_to(saying(SIZED + surplus)) as (client, server):
        for _ in range(2):
            assert (await ask(client)).data == b"abcd\r\nef!"
        assert server.accepted == 2


async def test_bytes_on_an_idle_connection_close_it() -> None:
    async with talking_to(saying(SIZED, SIZED, pause_s=0.05)) as (client, server):
        assert (await ask(client)).status == 200
        await settled(lambda: not client._open, "the connection dropped")
        assert (await ask(client)).data == b"abcd\r\nef!"
        assert server.accepted == 2


async def test_a_few_interim_answers_are_skipped_and_a_flood_of_them_is_a_protocol_error() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with talking_to(saying(MAX_INTERIM * interim + SIZED)) as (client, _):
        assert (await ask(client)).status == 200
    async with talking_to(saying(*(1000 * interim for _ in range(50)))) as (client, _):
        recorder = await ask(client)
        assert isinstance(recorder.error, BackendProtocolError)


async def test_aborting_closes_the_connection_without_calling_the_receiver() -> None:
    async with talking_to(saying(SIZED[:-1])) as (client, _):
        recorder = AnswerRecorder()
        exchange = client.send(post(client), recorder)
        await settled(lambda: bool(recorder.data), "part of the answer")
        exchange.abort()
        exchange.abort()
        await settled(lambda: not client._open, "the connection closed")
        assert (recorder.status, recorder.error) == (None, None)


async def test_fetch_returns_status_and_whole_body() -> None:
    async with talking_to(saying(CHUNKED)) as (client, _):
        assert await client.fetch(client.render("POST", "/x", b"{}")) == (200, b"abcd\r\nef!")


async def test_fetch_raises_what_was_lost_and_leaves_no_connection_when_cancelled() -> None:
    async with AsyncExitStack() as stack:
        client, _ = await stack.enter_async_context(talking_to(saying(b"HELLO\r\n\r\n")))
        with pytest.raises(BackendProtocolError):
            await client.fetch(post(client))
        mute, _ = await stack.enter_async_context(talking_to(saying()))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await mute.fetch(post(mute))
        await settled(lambda: not mute._open, "the connection closed")


async def test_connecting_is_bounded_in_time() -> None:
    # A listener with a full backlog neither accepts nor refuses, like a machine that is gone.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        client = Client(f"http://127.0.0.1:{port}", peer="engine", connect_timeout_s=0.3)
        recorders = [AnswerRecorder() for _ in range(8)]
        for recorder in recorders:
            client.send(post(client), recorder)
        await settled(lambda: any(recorder.error is not None for recorder in recorders), "a connection given up")
        assert {type(recorder.error) for recorder in recorders if recorder.error} == {BackendUnavailable}
        await client.aclose()


async def test_addresses_that_are_not_http_are_refused() -> None:
    with pytest.raises(ValueError, match="https"):
        Client("https://engine:1", peer="engine", connect_timeout_s=1)
