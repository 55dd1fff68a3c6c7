"""Limits on a client whose request is not yet whole: bytes, time, descriptors and lines of the log."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import orjson
import pytest

from gateway.client_http import ClientConnection
from gateway.client_http.intake import MAX_ADDRESSES, SPARE_CONNECTIONS, Intake, LogThrottle
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.settings import LimitSettings
from tests.serving.stack import (
    HELLO,
    LIMITS,
    MODEL,
    RawClient,
    Stack,
    Writer,
    eventually,
    make_stack,
    raw_client,
    running,
)

CHAT = orjson.dumps({"model": MODEL, "messages": HELLO})
PATH = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
SHORT_S = 0.3
HASTY = replace(LIMITS, head_timeout_s=SHORT_S, body_timeout_s=SHORT_S, max_bodies_bytes=128 * 1024)


@pytest.fixture
async def hasty(language: ModelLanguage, writer: Writer) -> AsyncIterator[Stack]:
    """A gateway with short limits."""
    async with running(make_stack(language, HASTY)) as stack:
        stack.low.script = writer.script("Paris")
        yield stack


def head_of(length: int, *fields: bytes) -> bytes:
    return PATH + b"".join(field + b"\r\n" for field in (b"content-length: %d" % length, *fields)) + b"\r\n"


async def code_of(client: RawClient) -> tuple[int, str, bool]:
    """Status and code of an error, and whether the connection has ended with it."""
    answer = await client.answer()
    code: str = orjson.loads(answer.body)["error"]["code"]
    return answer.status, code, await client.reader.read() == b""


# Time.


@pytest.mark.parametrize(
    "sent", [b"POST", PATH, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\na: b\r\n", PATH + b"a: " + b"b" * 9000]
)
async def test_a_head_has_a_time_to_arrive(hasty: Stack, sent: bytes) -> None:
    async with raw_client(hasty) as client:
        began = time.monotonic()
        client.writer.write(sent)
        assert await code_of(client) == (408, "request_timeout", True)
        assert time.monotonic() - began >= 0.9 * SHORT_S


CHUNKED = PATH + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece"),
    [(head_of(1000), b" "), (head_of(1000, b"expect: nothing"), b" "), (CHUNKED, b"1\r\n \r\n")],
    ids=["usual", "by the parser", "chunked"],
)
async def test_a_body_has_a_time_to_arrive_however_often_a_byte_of_it_comes(
    hasty: Stack, head: bytes, piece: bytes
) -> None:
    async with raw_client(hasty) as client:
        client.writer.write(head)
        for _ in range(20):
            client.writer.write(piece)
            await asyncio.sleep(SHORT_S / 10)
        assert await code_of(client) == (408, "request_timeout", True)


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
async def test_a_connection_without_a_request_is_closed_without_an_answer(hasty: Stack, sent: bytes) -> None:
    async with raw_client(hasty) as client:
        client.writer.write(sent)
        async with asyncio.timeout(SHORT_S * 10):
            assert await client.reader.read() == b""


async def test_what_arrives_in_time_is_answered_and_the_connection_goes_on(hasty: Stack) -> None:
    async with raw_client(hasty) as client:
        for pause in (0, SHORT_S / 3, SHORT_S * 2):  # the last of them between two requests, which is no lateness
            await asyncio.sleep(0 if pause < SHORT_S else pause)
            for piece in (head_of(len(CHAT))[:30], head_of(len(CHAT))[30:], CHAT[:9], CHAT[9:]):
                client.writer.write(piece)
                await asyncio.sleep(pause if pause < SHORT_S else 0)
            assert (await client.answer()).status == 200


async def test_what_waits_behind_an_answer_is_not_late(hasty: Stack, writer: Writer) -> None:
    """A connection's next request is not read while its answer before that is under way."""
    hasty.low.script = lambda _: writer.script("Paris")
    async with raw_client(hasty) as client:
        client.writer.write(head_of(len(CHAT)) + CHAT + head_of(len(CHAT), b"expect: nothing"))
        await asyncio.sleep(0.05)
        assert (await client.answer()).status == 200
        client.writer.write(CHAT)
        assert (await client.answer()).status == 200


# Bytes.


async def test_a_head_has_a_size(hasty: Stack) -> None:
    limit = HASTY.max_head_bytes
    async with raw_client(hasty) as client:
        client.writer.write(head_of(len(CHAT), b"a: " + b"b" * (limit - 200)) + CHAT)
        assert (await client.answer()).status == 200
        client.writer.write(head_of(len(CHAT), b"a: " + b"b" * limit) + CHAT)
        assert await code_of(client) == (431, "request_head_too_large", True)


@pytest.mark.parametrize("start", [PATH, PATH + b"a: ", b"POST /", CHUNKED + b"0\r\na: "])
async def test_a_head_or_trailer_without_end_is_not_read_to_it(hasty: Stack, start: bytes) -> None:
    async with raw_client(hasty) as client:
        client.writer.write(start)
        filler = b"x" * 65_536 if start != PATH else b"a: b\r\n" * 10_000
        for _ in range(100):
            client.writer.write(filler)
            await asyncio.sleep(0)
        assert await code_of(client) == (431, "request_head_too_large", True)


async def test_bodies_that_are_not_whole_have_a_size_together(hasty: Stack) -> None:
    piece = b" " * 60_000
    async with AsyncExitStack() as clients:
        first, second, third = [await clients.enter_async_context(raw_client(hasty)) for _ in range(3)]
        for client in (first, second):
            client.writer.write(head_of(len(piece) + 1) + piece)
        await eventually(lambda: hasty.app.endpoints.intake.body_bytes == 2 * len(piece))
        third.writer.write(head_of(len(piece) + 1) + piece)
        answer = await third.answer()
        assert (answer.status, answer.headers["retry-after"], await third.reader.read()) == (429, "1", b"")
        first.leave()
        await eventually(lambda: hasty.app.endpoints.intake.body_bytes == len(piece))
        async with raw_client(hasty) as fourth:
            fourth.writer.write(head_of(len(CHAT) + 60_000) + CHAT)
            fourth.writer.write(b" " * 60_000)
            assert (await fourth.answer()).status == 200
    await eventually(lambda: hasty.app.endpoints.intake.body_bytes == 0)


@asynccontextmanager
async def keeping_no(kind: type) -> AsyncIterator[None]:
    """Requires that no more objects of this kind are left, although the collector is off."""
    gc.collect()
    before = count(kind)
    gc.disable()
    try:
        yield
        await asyncio.sleep(0.05)
        assert count(kind) == before
    finally:
        gc.enable()


def count(kind: type) -> int:
    return sum(type(found) is kind for found in gc.get_objects())


@pytest.mark.parametrize("field", [b"a: b", b"expect: nothing"], ids=["usual", "by the parser"])
async def test_the_body_of_a_client_that_left_is_freed_at_once(hasty: Stack, field: bytes) -> None:
    """A connection and what it carries know each other: the collector would come too late."""
    async with keeping_no(ClientConnection):
        for _ in range(3):
            async with raw_client(hasty) as client:
                client.writer.write(head_of(60_000, field) + b" " * 59_998)
                await eventually(lambda: hasty.app.endpoints.intake.body_bytes == 59_998)
                client.leave()
            await eventually(lambda: hasty.app.endpoints.intake.body_bytes == 0)


async def test_a_body_that_was_read_in_a_thread_and_refused_is_freed_at_once(hasty: Stack) -> None:
    """Its error knows every frame that it came through, and all of the body in them."""
    body = b'{"model":"tiny","messages":[%b{}]}' % (b"{}," * 8000)
    async with keeping_no(InvalidRequest):
        for _ in range(3):
            async with raw_client(hasty) as client:
                client.writer.write(head_of(len(body)) + body)
                assert (await client.answer()).status == 400


# Connections.


async def test_beyond_the_usual_number_a_probe_is_answered_and_nothing_else(
    hasty: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    hasty.app.endpoints.intake.max_connections = 2
    async with AsyncExitStack() as clients:
        usual = [await clients.enter_async_context(raw_client(hasty)) for _ in range(2)]
        for client in usual:
            client.writer.write(head_of(len(CHAT)) + CHAT)
            assert (await client.answer()).status == 200
        for _ in range(2):
            async with raw_client(hasty) as probe:
                probe.send("GET", "/health")
                answer = await probe.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
            async with raw_client(hasty) as surplus:
                surplus.writer.write(head_of(len(CHAT)) + CHAT)
                assert await code_of(surplus) == (429, "overloaded", True)
        usual[0].writer.write(head_of(len(CHAT)) + CHAT)
        assert (await usual[0].answer()).status == 200
    assert caplog.text.count("connections are open") == 1


async def test_of_too_many_beyond_the_oldest_is_closed_so_that_a_probe_is_answered(hasty: Stack) -> None:
    hasty.app.endpoints.intake.max_connections = 2
    async with AsyncExitStack() as clients:
        idle = [await clients.enter_async_context(raw_client(hasty)) for _ in range(2 + SPARE_CONNECTIONS)]
        await eventually(lambda: len(hasty.app.endpoints.intake._surplus) == SPARE_CONNECTIONS)
        async with raw_client(hasty) as probe:
            probe.send("GET", "/health")
            assert (await probe.answer()).status == 200
        with suppress(ConnectionError):
            async with asyncio.timeout(SHORT_S / 2):
                assert await idle[2].reader.read() == b""
    await eventually(lambda: not hasty.app.endpoints.intake._surplus)


# Heads that are none.


@pytest.mark.parametrize("hosts", [(), (b"host: a", b"host: b"), (b"host: a", b"Host: a")])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/metrics", "/nowhere"])
async def test_a_request_without_one_host_is_refused(hasty: Stack, hosts: tuple[bytes, ...], path: str) -> None:
    method = "POST" if path.startswith("/v1") else "GET"
    async with raw_client(hasty) as client:
        lines = b"".join(host + b"\r\n" for host in hosts)
        client.writer.write(f"{method} {path} HTTP/1.1\r\n".encode() + lines + b"content-length: 0\r\n\r\n")
        assert await code_of(client) == (400, "invalid_value", True)


async def test_http_1_0_needs_no_host(hasty: Stack) -> None:
    async with raw_client(hasty) as client:
        client.writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 OK" in await client.reader.read()


async def test_what_is_no_http_is_logged_once_for_each_address(hasty: Stack, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        async with raw_client(hasty) as client:
            client.writer.write(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
            assert await code_of(client) == (400, "invalid_value", True)
    assert [record.message for record in caplog.records] == ["127.0.0.1 sent something that is not HTTP"]


async def test_nonsense_behind_a_request_does_not_break_into_its_answer(hasty: Stack) -> None:
    async with raw_client(hasty) as client:
        client.writer.write(head_of(len(CHAT)) + CHAT + b"\x16\x03\x01 nonsense\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 200
        assert orjson.loads(answer.body)["choices"][0]["message"]["content"] == "Paris"
        assert await client.reader.read() == b""


@pytest.mark.parametrize(
    "path", [b"/v1/%63hat/completions", b"/%76%31/chat%2Fcompletions", b"/v1/chat/completions?key=secret"]
)
async def test_a_path_is_the_one_it_names(hasty: Stack, path: bytes) -> None:
    async with raw_client(hasty) as client:
        client.writer.write(head_of(len(CHAT)).replace(b"/v1/chat/completions", path) + CHAT)
        assert (await client.answer()).status == 200


# What is counted and what is logged.


def test_the_log_gets_one_line_for_each_key_and_interval() -> None:
    throttle = LogThrottle(interval_s=0.05)
    assert [throttle.admit(key) for key in ("a", "a", "b", "a")] == [0, None, 0, None]
    time.sleep(0.06)
    assert [throttle.admit("a"), throttle.admit("a")] == [2, None]


def test_of_too_many_keys_the_oldest_is_forgotten() -> None:
    throttle = LogThrottle()
    for number in range(2 * MAX_ADDRESSES):
        assert throttle.admit(str(number)) == 0
    assert throttle.admit(str(2 * MAX_ADDRESSES - 1)) is None
    assert throttle.admit("0") == 0


def test_a_repeated_line_says_how_many_it_stands_for(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake(LimitSettings(), max_connections=1)
    intake._throttle = LogThrottle(interval_s=0.05)
    for _ in range(4):
        intake.note_bad_request("10.0.0.1")
    time.sleep(0.06)
    with caplog.at_level(logging.WARNING):
        intake.note_bad_request("10.0.0.1")
    assert caplog.records[-1].message == (
        "10.0.0.1 sent something that is not HTTP, and 3 times since this was last reported"
    )
