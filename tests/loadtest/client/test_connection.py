"""Connections to a server that answers byte by byte as each test says."""

import asyncio

import pytest

from loadtest.client.connection import ConnectionLost, clock
from loadtest.client.errors import Unreachable
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.client.target import Target
from tests.fakes.openai import LAST_CHUNK, Exchange, FakeOpenAI, chunk, saying

HEAD = b"HTTP/1.1 200 OK\r\nX-Crossover-Backend: triton\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
REQUEST = Target("h", 80).request("POST", "/x")


async def test_events_are_stamped_when_they_arrive_and_the_connection_is_used_again() -> None:
    answering = saying(HEAD + chunk(TOKEN), chunk(TOKEN) + LAST_CHUNK, pause_s=0.2)
    async with FakeOpenAI(answering).serving() as server:
        connection = await Target.parse(server.url).connect()
        for _ in range(2):
            answer, before = StreamedAnswer(), clock()
            await connection.exchange(REQUEST, answer)
            assert answer.backend == "triton"
            assert before <= answer.started_at <= answer.times[0]
            assert answer.times[1] - answer.times[0] >= 0.19
        assert connection.is_open
        connection.abort()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "before the response was over"),
        (HEAD + chunk(TOKEN), "before the response was over"),
        (b"SSH-2.0\r\n\r\n", "not HTTP"),
    ],
)
async def test_a_response_cut_or_foreign_is_a_lost_connection(reply: bytes, message: str) -> None:
    async with FakeOpenAI(saying(reply, then_close=True)).serving() as server:
        connection = await Target.parse(server.url).connect()
        for words in (message, "closed before the request"):
            with pytest.raises(ConnectionLost, match=words):
                await connection.exchange(REQUEST, StreamedAnswer())


async def test_a_server_that_wants_to_close_is_not_asked_again() -> None:
    closing = saying(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    async with FakeOpenAI(closing).serving() as server:
        connection = await Target.parse(server.url).connect()
        await connection.exchange(REQUEST, StreamedAnswer())
        assert not connection.is_open


async def test_cancelling_an_exchange_closes_its_connection_at_once() -> None:
    left = asyncio.Event()

    async def wait_for_the_end(exchange: Exchange) -> None:
        await exchange.say(HEAD)
        await exchange.left()
        left.set()

    async with FakeOpenAI(wait_for_the_end).serving() as server:
        connection = await Target.parse(server.url).connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connection.exchange(REQUEST, StreamedAnswer())
        async with asyncio.timeout(5):
            await left.wait()


async def test_nobody_listening_is_unreachable() -> None:
    async with FakeOpenAI().serving() as server:
        pass
    with pytest.raises(Unreachable, match=f"cannot connect to {server.url}"):
        await Target.parse(server.url).connect()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://localhost:8080", ("localhost", 8080, False, "")),
        ("http://localhost:8080/v1/", ("localhost", 8080, False, "")),
        ("https://gpu.example/proxy/v1", ("gpu.example", 443, True, "/proxy")),
        ("http://h", ("h", 80, False, "")),
    ],
)
def test_target_is_read_from_a_url(url: str, parts: tuple[str, int, bool, str]) -> None:
    target = Target.parse(url)
    assert (target.host, target.port, target.tls, target.path) == parts


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://h", "http://", "http://h:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Target.parse(url)


def test_requests_carry_the_prefix_the_key_and_their_length() -> None:
    request = Target("h", 80, path="/p", key="secret").request("POST", "/v1/x", b"{}", {"x-crossover-pin": "vllm"})
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /p/v1/x HTTP/1.1"
    expected = [b"authorization: Bearer secret", b"content-length: 2", b"x-crossover-pin: vllm", b"host: h:80"]
    assert set(expected) <= set(lines)
    assert body == b"{}"
    assert "secret" not in repr(Target("h", 80, key="secret"))
