"""The relay lane whole: clients, the gateway and engines on real sockets; the same before any ASGI server."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError

from gateway.core import RelayCall, RelayRequest, RelaySink
from gateway.settings import LimitSettings
from tests.fakes.openai import (
    DONE,
    LAST_CHUNK,
    SSE,
    STREAM,
    Answer,
    Exchange,
    FakeOpenAI,
    chunk,
    chunked,
    event,
    saying,
    sized,
    usage_event,
)
from tests.serving.relay_stack import SERVERS, RelayStack, relaying
from tests.serving.stack import HELLO, MODEL, RawAnswer, RawClient, connect, eventually, raw_client

EVENTS = (event("Par"), event("is"), event(None, "stop"), usage_event(7, 3), DONE)
PAYLOAD = b"".join(EVENTS)
COMPLETION = orjson.dumps({
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
})
FULL = sized(b'{"error": {"message": "full", "code": 503}}', 503)
BODY_LIMIT = 64 * 1024 * 1024


@pytest.fixture(params=["direct", "h11"])
async def relay(request: pytest.FixtureRequest) -> AsyncIterator[RelayStack]:
    async with relaying(request.param) as stack:
        yield stack


EVERYWHERE = pytest.mark.parametrize("relay", SERVERS, indirect=True)


@pytest.fixture
async def direct() -> AsyncIterator[RelayStack]:
    async with relaying() as stack:
        yield stack


@pytest.fixture
async def openai(relay: RelayStack) -> AsyncIterator[AsyncOpenAI]:
    async with connect(relay) as client:  # type: ignore[arg-type]  # it asks for the url only
        yield client


def client_of(stack: "RelayStack | Served") -> AbstractAsyncContextManager[RawClient]:
    return raw_client(stack)  # type: ignore[arg-type]  # it asks for the port only


async def post(stack: RelayStack, body: bytes | None = None, path: str = "/v1/chat/completions") -> RawAnswer:
    async with client_of(stack) as client:
        client.send("POST", path, orjson.dumps({"model": MODEL}) if body is None else body)
        return await client.answer()


@EVERYWHERE
async def test_the_official_client_reads_a_stream(relay: RelayStack, openai: AsyncOpenAI) -> None:
    relay.low.answer = saying(STREAM, *map(chunk, EVENTS), LAST_CHUNK, pause_s=0.002)
    stream = await openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True, seed=7)
    chunks = [piece async for piece in stream]
    assert "".join(piece.choices[0].delta.content or "" for piece in chunks if piece.choices) == "Paris"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert orjson.loads(relay.low.exchanges[0].body) == {
        "model": MODEL, "messages": HELLO, "stream": True, "seed": 7
    }  # fmt: skip
    await relay.settle()
    assert relay.counted("low", "stop")


@EVERYWHERE
async def test_the_official_client_reads_an_answer(relay: RelayStack, openai: AsyncOpenAI) -> None:
    relay.low.answer = saying(sized(COMPLETION))
    completion = await openai.chat.completions.create(model=MODEL, messages=HELLO)
    assert completion.choices[0].message.content == "Paris"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 10


@pytest.mark.parametrize("count", [b"99999999999999999999", b"9" * 5000, b"-5"])
async def test_a_place_is_given_back_whatever_an_engine_counts(relay: RelayStack, count: bytes) -> None:
    usage = b'"usage":{"prompt_tokens":%b,"completion_tokens":%b,"total_tokens":1}' % (count, count)
    relay.low.answer = saying(sized(b'{"object":"chat.completion","choices":[],%b}' % usage))
    for _ in range(3):
        assert (await post(relay)).status == 200
    relay.low.answer = saying(STREAM, chunk(EVENTS[0]), chunk(b"data: {%b}\n\n" % usage), chunk(DONE), LAST_CHUNK)
    for _ in range(3):
        assert (await post(relay)).status == 200
    await relay.settle()
    assert relay.counted("low", "stop", times=6)


async def test_the_official_client_gets_embeddings(relay: RelayStack, openai: AsyncOpenAI) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    relay.low.answer = saying(sized(orjson.dumps({"object": "list", "data": data, "model": MODEL, "usage": usage})))
    answer = await openai.embeddings.create(model=MODEL, input="Hi", encoding_format="float")
    assert answer.data[0].embedding == [0.5, -1.0]
    assert relay.low.exchanges[0].request_line == b"POST /v1/embeddings HTTP/1.1"


async def test_the_official_client_understands_what_engines_refuse(relay: RelayStack, openai: AsyncOpenAI) -> None:
    relay.low.answer = saying(sized(b'{"error": {"message": "too long", "type": "x", "code": 400}}', 400))
    with pytest.raises(BadRequestError, match="too long"):
        await openai.chat.completions.create(model=MODEL, messages=HELLO)
    relay.low.answer = saying(STREAM + chunked(b'data: {"error": {"message": "too long", "code": 400}}\n\n', DONE))
    with pytest.raises(BadRequestError, match="too long"):
        await openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    relay.low.answer = saying(sized(b'{"error": {"message": "broken", "type": "x", "code": 500}}', 500))
    with pytest.raises(InternalServerError, match="broken"):
        await openai.chat.completions.create(model=MODEL, messages=HELLO)
    await relay.settle()
    assert relay.counted("low", "refused", times=3)


BODIES = {
    "a stream": (STREAM + chunked(*EVENTS), PAYLOAD),
    "a sized stream": (SSE + b"content-length: %d\r\n\r\n" % len(PAYLOAD) + PAYLOAD, PAYLOAD),
    "a stream with extensions and trailers": (
        STREAM + b"%x;a=b\r\n%b\r\n0\r\nx-trailer: 1\r\n\r\n" % (len(PAYLOAD), PAYLOAD),
        PAYLOAD,
    ),
    "an empty stream": (STREAM + LAST_CHUNK, b""),
    "JSON": (sized(COMPLETION), COMPLETION),
    "JSON with spaces": (sized(b' { "a" :\n"\xc3\xa9" }\n\n'), b' { "a" :\n"\xc3\xa9" }\n\n'),
    "any bytes": (sized(bytes(range(256)) * 64, content_type="audio/mpeg"), bytes(range(256)) * 64),
    "nothing": (sized(b""), b""),
    "a status of the engine's own": (sized(b"hot", 520), b"hot"),
    "chunks that are no stream": (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunked(COMPLETION[:9], COMPLETION[9:]),
        COMPLETION,
    ),
}


@pytest.mark.parametrize("form", BODIES)
async def test_a_body_comes_as_the_engine_sent_it(relay: RelayStack, form: str) -> None:
    wire, payload = BODIES[form]
    relay.low.answer = saying(wire)
    async with client_of(relay) as client:
        for _ in range(2):  # the connection carries another request
            client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
            if b"x-trailer" in wire:
                assert payload in await client.until(b"0\r\nx-trailer: 1\r\n\r\n" if relay.is_direct else LAST_CHUNK)
            else:
                assert (await client.answer()).body == payload


async def test_a_body_without_length_ends_with_the_engines_connection(relay: RelayStack) -> None:
    relay.low.answer = saying(SSE + b"\r\n", *EVENTS, pause_s=0.01, then_close=True)
    async with client_of(relay) as client:
        for _ in range(2):
            client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
            assert (await client.answer()).body == PAYLOAD


async def test_chunks_of_any_length_are_framed_here(relay: RelayStack) -> None:
    events = [b"data: %b\n\n" % (b"x" * (size - 8)) for size in (255, 256, 2047, 2048, 4095, 4096)]
    relay.low.answer = saying(SSE + b"\r\n", *events, pause_s=0.02, then_close=True)
    async with client_of(relay) as client:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
        assert (await client.answer()).body == b"".join(events)


async def test_chunks_leave_as_they_came(direct: RelayStack) -> None:
    wire = b"5;x=y\r\ndata:\r\n" + b"0000A\r\n 123456\n\n1\r\n" + chunked(DONE)
    direct.low.answer = saying(STREAM, wire[:30], wire[30:], pause_s=0.01)
    async with client_of(direct) as client:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
        await client.until(b"\r\n\r\n")
        assert await client.until(LAST_CHUNK) == wire


async def test_our_headers_are_there_and_the_engines_are_kept(relay: RelayStack) -> None:
    theirs = b"x-engine: 1\r\nset-cookie: a\r\nset-cookie: b\r\nserver: engine\r\nx-request-id: theirs\r\n"
    relay.low.answer = saying(sized(COMPLETION, fields=theirs))
    body = b'{ "model" : "%b",\n"an_engines_own": 1.0 }' % MODEL.encode()
    async with client_of(relay) as client:
        client.send("POST", "/v1/chat/completions?x=1&y=%2F", body, x_custom="1")
        head = (await client.until(b"\r\n\r\n")).lower()
    for line in (
        b"content-type: application/json",
        b"content-length: %d" % len(COMPLETION),
        b"x-engine: 1",
        b"set-cookie: a",
        b"set-cookie: b",
        b"x-crossover-backend: low",
        b"x-crossover-reason: threshold in_flight=1 up=5 down=2",
    ):
        assert head.count(b"\r\n" + line + b"\r\n") == 1, line
    (exchange,) = relay.low.exchanges
    (request_id,) = exchange.field(b"x-request-id")
    assert head.count(b"\r\nx-request-id: " + request_id + b"\r\n") == 1
    assert b"\r\nserver-timing: gateway;dur=" in head
    assert b"server: engine" not in head
    assert exchange.request_line == b"POST /v1/chat/completions?x=1&y=%2F HTTP/1.1"
    assert (exchange.body, exchange.field(b"x-custom")) == (body, [b"1"])


@EVERYWHERE
async def test_a_header_cannot_be_smuggled_in_by_an_engine(relay: RelayStack) -> None:
    """Response splitting: a bare CR or LF within a value would begin a header, or an answer, of its own."""
    for value in (b"a\nset-cookie: b", b"a\rset-cookie: b", b"a\r\n b", b"a\0b", b"a\n\nHTTP/1.1 200 OK\n\n"):
        relay.low.answer = relay.high.answer = saying(sized(COMPLETION, fields=b"x-engine: " + value + b"\r\n"))
        answer = await post(relay)
        assert answer.status == 502
        assert "set-cookie" not in answer.headers
        assert orjson.loads(answer.body)["error"]["code"] == "backend_protocol_error"


REFUSALS = {
    b'{"model": "other", "messages": [{"role": "user", "content": "Hi"}]}': {(404, "model_not_found")},
    b'{"messages": []}': {(404, "model_not_found"), (400, "invalid_value")},
    b'{"model": 7}': {(404, "model_not_found"), (400, "invalid_value")},
    b'{"model": null}': {(404, "model_not_found"), (400, "invalid_value")},
    b'{"model": ': {(400, "invalid_value")},
    b"[]": {(400, "invalid_value")},
    b"": {(400, "invalid_value")},
    b'{"model": "\xff"}': {(400, "invalid_value")},
}


@EVERYWHERE
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_what_names_no_model_of_ours_reaches_no_engine(relay: RelayStack, path: str) -> None:
    for body, refusals in REFUSALS.items():
        answer = await post(relay, body, path)
        assert (answer.status, orjson.loads(answer.body)["error"]["code"]) in refusals, body
        assert answer.headers["x-request-id"]
    assert relay.low.exchanges == relay.high.exchanges == []


async def test_other_paths_and_methods_are_refused(relay: RelayStack, openai: AsyncOpenAI) -> None:
    async with client_of(relay) as client:
        for method, path, status in (
            ("POST", "/v1/other", 404),
            ("GET", "/v1/embeddings", 405),
            ("PUT", "/v1/chat/completions", 405),
            ("POST", "/v1/models", 405),
            ("GET", "/v1/models", 200),
        ):
            client.send(method, path)
            assert (await client.answer()).status == status
    with pytest.raises(NotFoundError):
        await openai.models.retrieve("other")
    assert (await openai.models.retrieve(MODEL)).id == MODEL


async def test_a_query_of_any_bytes_is_no_fault_of_ours(relay: RelayStack) -> None:
    async with client_of(relay) as client:
        client.writer.write(
            b"POST /v1/chat/completions?q=\xc3\xa9 HTTP/1.1\r\nhost: x\r\ncontent-length: 16\r\n\r\n"
            + orjson.dumps({"model": MODEL})
        )
        assert (await client.until(b"\r\n")).split()[1] in {b"200", b"400"}  # h11 refuses them


def elsewhere(kind: str) -> tuple[Answer, str]:
    """Ways of an engine to be of no use before it answers, and the outcome they are counted as."""

    async def reset(exchange: Exchange) -> None:
        exchange.abort()

    answers: dict[str, tuple[Answer, str]] = {
        "full": (saying(FULL), "backend_full"),
        "full by an event": (
            saying(STREAM + chunked(b'data: {"error": {"message": "full", "code": 503}}\n\n', DONE)),
            "backend_full",
        ),
        "a proxy's 502": (saying(sized(b"", 502)), "backend_unavailable"),
        "gone before the head": (saying(then_close=True), "backend_unavailable"),
        "reset": (reset, "backend_unavailable"),
        "gone after the head": (saying(STREAM, pause_s=0.02, then_close=True), "backend_unavailable"),
        "gone within the first event": (saying(STREAM + b"ff\r\ndata: {", then_close=True), "backend_unavailable"),
    }
    return answers[kind]


KINDS = [
    "full", "full by an event", "a proxy's 502", "gone before the head", "reset", "gone after the head",
    "gone within the first event",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_what_one_engine_cannot_answer_another_does(relay: RelayStack, kind: str) -> None:
    relay.low.answer, outcome = elsewhere(kind)
    relay.high.answer = saying(STREAM + chunked(*EVENTS))
    answer = await post(relay)
    assert (answer.status, answer.body) == (200, PAYLOAD)
    assert answer.headers["x-crossover-backend"] == "high"
    await relay.settle()
    assert relay.counted("low", outcome)
    assert relay.counted("high", "stop")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_no_engine_can_answer_is_a_503(relay: RelayStack, kind: str) -> None:
    relay.low.answer, outcome = relay.high.answer, _ = elsewhere(kind)
    answer = await post(relay)
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (503, outcome)
    assert answer.headers["retry-after"] == "1"
    for engine in (relay.low, relay.high):
        assert 1 <= len(engine.exchanges) <= 2  # a kept connection that closes without a word is replaced once


class Faulty:
    """In an engine's place: fails as only a fault of the gateway's own does."""

    def relay(self, request: RelayRequest, sink: RelaySink) -> RelayCall:
        raise ZeroDivisionError("secret")


async def test_a_fault_of_the_gateway_in_the_second_try_is_a_500_and_not_the_first_engines(
    relay: RelayStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.low.answer = saying(FULL)
    with monkeypatch.context() as patch:
        patch.setitem(cast("dict[str, object]", relay.servers), "high", Faulty())
        async with asyncio.timeout(5):
            answer = await post(relay)
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] in caplog.text
    relay.low.answer = saying(sized(COMPLETION))
    assert (await post(relay)).headers["x-crossover-backend"] == "low"


async def test_an_engine_that_is_down_is_not_asked_until_it_is_back(relay: RelayStack) -> None:
    await relay.low.stop()
    for _ in range(3):
        answer = await post(relay)
        assert (answer.status, answer.headers["x-crossover-backend"]) == (200, "high")
    state = relay.app.router.model_state(MODEL).backends
    assert not state["low"].is_ready
    await relay.low.start()
    await eventually(lambda: relay.app.router.model_state(MODEL).backends["low"].is_ready)
    assert (await post(relay)).headers["x-crossover-backend"] == "low"


async def test_a_full_engine_stays_in_use(relay: RelayStack) -> None:
    relay.low.answer = saying(FULL)
    assert (await post(relay)).headers["x-crossover-backend"] == "high"
    relay.low.answer = saying(sized(COMPLETION))
    assert (await post(relay)).headers["x-crossover-backend"] == "low"


async def test_a_pinned_request_is_tried_nowhere_else(relay: RelayStack) -> None:
    relay.high.answer = saying(FULL)
    async with client_of(relay) as client:
        for pin, status, code in (("low", 200, None), ("high", 503, "backend_full"), ("other", 400, "invalid_value")):
            client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}), x_crossover_pin=pin)
            answer = await client.answer()
            assert (answer.status, orjson.loads(answer.body).get("error", {}).get("code")) == (status, code)
    assert (len(relay.low.exchanges), len(relay.high.exchanges)) == (1, 1)


async def test_a_run_is_counted_apart_from_users_here_too(relay: RelayStack) -> None:
    async with client_of(relay) as client:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}), x_crossover_run="run-1")
        assert (await client.answer()).status == 200
    await relay.settle()
    metrics = relay.app.metrics.render().decode()
    assert f'crossover_run_requests_total{{backend="low",model="{MODEL}",outcome="stop"}} 1.0' in metrics
    assert "crossover_requests_total{" not in metrics


async def test_the_choices_of_a_request_count_as_so_many(relay: RelayStack) -> None:
    relay.low.answer = Exchange.left
    async with client_of(relay) as client:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "n": 3}))
        await eventually(lambda: relay.in_flight == {"low": 3, "high": 0})
        client.leave()
        await relay.settle()


@EVERYWHERE
@pytest.mark.parametrize("end", ["closed", "reset", "nonsense"])
async def test_an_engine_that_goes_away_between_events_is_an_error_event(relay: RelayStack, end: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.say(STREAM, chunk(EVENTS[0]), pause_s=0.02)
        await exchange.say({"nonsense": b"zz\r\n"}.get(end, b""))
        if end != "nonsense":
            (exchange.abort if end == "reset" else exchange.close)()

    relay.low.answer = answer
    answer_ = await post(relay)
    assert answer_.status == 200
    first, error, rest = answer_.body.split(b"\n\n")
    assert first + b"\n\n" == EVENTS[0]
    assert orjson.loads(error.removeprefix(b"data: "))["error"]["code"] == "backend_lost"
    assert rest == b""
    await relay.settle()
    assert relay.high.exchanges == []
    assert relay.counted("low", "backend_lost")


CUTS = {
    "within an event": STREAM + chunk(EVENTS[0]) + chunk(EVENTS[1][:20]),
    "within a chunk": STREAM + chunk(EVENTS[0]) + chunk(EVENTS[1])[:20],
    "within a sized body": sized(COMPLETION)[:-9],
    "within a sized stream": SSE + b"content-length: 9999\r\n\r\n" + EVENTS[0],
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("where", CUTS)
async def test_an_engine_that_goes_away_in_the_middle_cuts_the_answer(
    relay: RelayStack, where: str, reset: bool
) -> None:
    """Never a silent success: the client sees that its answer is not whole."""

    async def answer(exchange: Exchange) -> None:
        await exchange.say(CUTS[where], pause_s=0.02)
        (exchange.abort if reset else exchange.close)()

    relay.low.answer = answer
    async with client_of(relay) as client:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
    await relay.settle()
    assert relay.high.exchanges == []
    assert relay.counted("low", "backend_lost")


@EVERYWHERE
@pytest.mark.parametrize("wire", [b"", STREAM, STREAM + chunk(EVENTS[0]), STREAM + chunk(EVENTS[0])[:50]])
async def test_a_client_that_leaves_frees_engine_and_lease(relay: RelayStack, wire: bytes) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.say(wire)
        await exchange.left()

    relay.low.answer = answer
    async with client_of(relay) as client:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
        await eventually(lambda: bool(relay.low.exchanges))
        if wire.endswith(EVENTS[0] + b"\r\n"):
            await client.until(EVENTS[0])
        assert relay.in_flight == {"low": 1, "high": 0}
        client.leave()
        await relay.settle()
    assert relay.low.exchanges[0].was_left
    assert relay.counted("low", "cancelled")


async def test_a_client_that_leaves_after_its_answer_leaves_the_engines_connection(relay: RelayStack) -> None:
    relay.low.answer = saying(STREAM + chunked(*EVENTS))
    for _ in range(3):
        await post(relay)
    await relay.settle()
    assert [exchange.was_left for exchange in relay.low.exchanges] == [False] * 3
    assert len({id(exchange.writer) for exchange in relay.low.exchanges}) <= 2  # one, and one of a probe's


@EVERYWHERE
async def test_a_client_that_leaves_while_it_sends_its_body_starts_nothing(relay: RelayStack) -> None:
    async with client_of(relay) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await client.writer.drain()
        await asyncio.sleep(0.02)
        client.leave()
    await relay.settle()
    assert relay.low.exchanges == []


MUCH = chunk(b"data: " + b"x" * 65_536 + b"\n\n")
MANY = 600  # 39 MB: more than sockets and buffers hold


async def answer_much(exchange: Exchange) -> None:
    await exchange.say(STREAM, *[MUCH] * MANY, LAST_CHUNK)


@pytest.fixture
async def patient(request: pytest.FixtureRequest) -> AsyncIterator[RelayStack]:
    """Clients may take nothing for as long as the test takes on a busy machine."""
    async with relaying(request.param, LimitSettings(client_write_timeout_s=30)) as stack:
        yield stack


@pytest.mark.parametrize("patient", SERVERS, indirect=True)
async def test_a_slow_client_holds_the_engine_up_and_gets_every_byte(patient: RelayStack) -> None:
    patient.low.answer = answer_much
    async with client_of(patient) as client:
        client.stop_reading()
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
        await eventually(lambda: bool(patient.low.exchanges) and patient.low.exchanges[0].written > 0)
        (exchange,) = patient.low.exchanges
        written = -1
        while exchange.written != written:
            written = exchange.written
            await asyncio.sleep(0.1)
        assert written < 0.9 * MANY * len(MUCH), "the engine's writes stall"
        client.go_on_reading()
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        received = 0
        while received < MANY * 65_536:
            piece = await client.reader.read(1 << 20)
            assert piece
            received += piece.count(b"x")
        assert received == MANY * 65_536
    await patient.settle()
    assert patient.counted("low", "stop")


async def test_a_client_that_stands_still_is_cut_off_and_its_neighbours_go_on(relay: RelayStack) -> None:
    async def answer(exchange: Exchange) -> None:
        if b"much" in exchange.body:
            await answer_much(exchange)
        else:
            await exchange.say(STREAM, *[chunk(event("x"))] * 40, LAST_CHUNK, pause_s=0.05)

    relay.low.answer = answer
    async with client_of(relay) as still:
        still.stop_reading()
        still.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "user": "much"}))
        neighbours = [asyncio.ensure_future(post(relay)) for _ in range(2)]
        await eventually(lambda: len(relay.low.exchanges) == 3)
        stalled = next(exchange for exchange in relay.low.exchanges if b"much" in exchange.body)
        await eventually(lambda: stalled not in relay.low.live)
        assert any(not neighbour.done() for neighbour in neighbours)
        for neighbour in neighbours:
            assert (await neighbour).body == event("x") * 40
    await relay.settle()
    assert relay.counted("low", "cancelled")


async def test_a_client_that_reads_a_little_at_a_time_is_not_cut_off() -> None:
    """Longer than client_write_timeout_s in all, but never without taking something for so long.

    What it takes is seen a megabyte at a time: nine in one timeout, for a busy machine takes its share.
    """
    async with relaying(limits=LimitSettings(client_write_timeout_s=3)) as stack, client_of(stack) as client:
        stack.low.answer = answer_much
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
        for _ in range(40):
            await client.reader.readexactly(300_000)
            await asyncio.sleep(0.1)
        received = 12_000_000
        while received < MANY * 65_536:
            piece = await client.reader.read(1 << 20)
            assert piece
            received += len(piece)


async def test_long_bodies_pass_both_ways() -> None:
    text = "é" * 3_000_000
    async with relaying(limits=LimitSettings(max_body_bytes=BODY_LIMIT, client_write_timeout_s=30)) as stack:

        async def echo(exchange: Exchange) -> None:
            await exchange.say(sized(exchange.body))

        stack.low.answer = echo
        body = orjson.dumps({"model": MODEL, "text": text})
        assert (await post(stack, body)).body == body
        assert stack.low.exchanges[0].body == body


async def test_two_hundred_streams_at_once_are_whole_and_in_order(direct: RelayStack) -> None:
    async def answer(exchange: Exchange) -> None:
        name = orjson.loads(exchange.body)["user"]
        pieces = [chunk(b"data: %s-%d\n\n" % (name.encode(), n)) for n in range(30)]
        await exchange.say(STREAM, *pieces, LAST_CHUNK, pause_s=0.001)

    async def ask(name: str) -> None:
        answer = await post(direct, orjson.dumps({"model": MODEL, "user": name}))
        assert answer.body.split() == [part for n in range(30) for part in (b"data:", f"{name}-{n}".encode())]

    direct.low.answer = direct.high.answer = answer
    async with asyncio.TaskGroup() as tasks:
        for n in range(200):
            tasks.create_task(ask(str(n)))
    await direct.settle()
    assert len(direct.low.exchanges) + len(direct.high.exchanges) == 200
    assert direct.high.exchanges, "five in flight are the other engine's"


@EVERYWHERE
async def test_answers_under_way_end_when_the_gateway_gives_up(relay: RelayStack) -> None:
    """Streams by an error event, what has not begun by a 503, a body in its middle by a cut."""

    async def answer(exchange: Exchange) -> None:
        kind = orjson.loads(exchange.body)["user"]
        await exchange.say({"stream": STREAM + chunk(EVENTS[0]), "sized": sized(COMPLETION)[:-9], "": b""}[kind])
        await exchange.left()

    async def ask(client: RawClient, kind: str) -> None:
        client.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "user": kind}))

    relay.low.answer = relay.high.answer = answer
    async with client_of(relay) as streamed, client_of(relay) as cut, client_of(relay) as waiting:
        await ask(streamed, "stream")
        await ask(cut, "sized")
        await ask(waiting, "")
        await streamed.until(EVENTS[0])
        await cut.until(b"\r\n\r\n")
        await eventually(lambda: len(relay.low.exchanges) == 3)
        relay.app.endpoints.stop()
        refused = await waiting.answer()
        assert (refused.status, orjson.loads(refused.body)["error"]["code"]) == (503, "shutting_down")
        rest = await streamed.until(LAST_CHUNK)
        assert b'data: {"error":' in rest
        assert b"shutting_down" in rest
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await cut.reader.readexactly(len(COMPLETION))
        await relay.settle()


async def test_the_server_ends_with_relays_under_way(tmp_path: Path) -> None:
    """As a process: what ends within the drain time is whole, a stream that does not has an error event."""

    async def answer(exchange: Exchange) -> None:
        await exchange.say(STREAM, chunk(EVENTS[0]))
        if b"endless" in exchange.body:
            await exchange.left()
        else:
            await exchange.say(*map(chunk, EVENTS[1:]), LAST_CHUNK, pause_s=0.1)

    async with FakeOpenAI(answer).serving() as engine, Served(tmp_path, engine).running() as gateway:
        async with client_of(gateway) as ending, client_of(gateway) as endless, client_of(gateway) as idle:
            idle.send("GET", "/v1/models")
            assert (await idle.answer()).status == 200
            ending.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL}))
            endless.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "user": "endless"}))
            await ending.until(EVENTS[0])
            await endless.until(EVENTS[0])
            gateway.process.send_signal(signal.SIGTERM)
            assert await idle.reader.read() == b""
            assert (await ending.until(LAST_CHUNK)).endswith(chunk(DONE) + LAST_CHUNK)
            rest = await endless.until(LAST_CHUNK)
            assert b'data: {"error":' in rest
            assert b"shutting_down" in rest
            assert await endless.reader.read() == b""
        async with asyncio.timeout(20):
            _, log = await gateway.process.communicate()
        assert gateway.process.returncode == 0
        assert b"Traceback" not in log
        assert b"ERROR" not in log
        await eventually(lambda: not engine.connections)


@dataclass(slots=True)
class Served:
    """`crossover serve` with one relay backend."""

    folder: Path
    engine: FakeOpenAI
    port: int = 0
    process: asyncio.subprocess.Process = field(init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Served"]:
        config = self.folder / "crossover.yaml"
        backends = {"engine": {"kind": "relay", "url": self.engine.url}}
        config.write_bytes(orjson.dumps({"listen": "127.0.0.1:0", "models": [{"id": MODEL, "backends": backends}]}))
        command = ("-c", "from gateway.cli import main; main()", "serve", "-c", str(config), "--drain-timeout-s", "1")
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(40):
                line = await self.process.stdout.readline()
            self.port = int(line.split(b":")[-1].removesuffix(b"/v1\n"))
            yield self
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.communicate()
