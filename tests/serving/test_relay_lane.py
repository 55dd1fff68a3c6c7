"""The relay lane whole: clients, the gateway and engines on real sockets.

`relay` is served past ASGI and over it, for what depends on the client's connection; `direct` is for the rest.
"""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from types import FrameType

import orjson
import pytest
from openai import BadRequestError, InternalServerError

from gateway.settings import LimitSettings
from tests.fakes.openai import (
    DONE,
    LAST_CHUNK,
    SSE,
    STREAM,
    Exchange,
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
ASKED = orjson.dumps({"model": MODEL})
CHAT = "/v1/chat/completions"
MOST_CALLS = 124
# How often a loop wakes up for one request depends on who else uses the processor.
LOOP_OR_TEST = re.compile(r"/tests/|/asyncio/|/selectors\.py$|/_pytest/|/anyio/")


@pytest.fixture(params=SERVERS)
async def relay(request: pytest.FixtureRequest) -> AsyncIterator[RelayStack]:
    async with relaying(request.param) as stack:
        yield stack


@pytest.fixture
async def direct() -> AsyncIterator[RelayStack]:
    async with relaying() as stack:
        yield stack


async def post(stack: RelayStack, body: bytes = ASKED, **headers: str) -> RawAnswer:
    async with raw_client(stack) as client:
        client.send("POST", CHAT, body, **headers)
        return await client.answer()


async def test_the_official_client_reads_a_stream(relay: RelayStack) -> None:
    relay.low.answer = saying(STREAM, *map(chunk, EVENTS), LAST_CHUNK, pause_s=0.002)
    async with connect(relay) as openai:
        stream = await openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True, seed=7)
        chunks = [piece async for piece in stream]
    assert "".join(piece.choices[0].delta.content or "" for piece in chunks if piece.choices) == "Paris"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert orjson.loads(relay.low.exchanges[0].body) == {"model": MODEL, "messages": HELLO, "stream": True, "seed": 7}
    await relay.settle()
    assert relay.counted("low", "stop")


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (sized(b'{"error": {"message": "mine", "type": "x", "code": 400}}', 400), BadRequestError),
        (STREAM + chunked(b'data: {"error": {"message": "mine", "code": 400}}\n\n', DONE), BadRequestError),
        (sized(b'{"error": {"message": "mine", "type": "x", "code": 500}}', 500), InternalServerError),
    ],
)
async def test_an_engines_own_error_reaches_the_official_client(
    direct: RelayStack, wire: bytes, error: type[Exception]
) -> None:
    direct.low.answer = saying(wire)
    async with connect(direct) as openai:
        with pytest.raises(error, match="mine"):
            await openai.chat.completions.create(model=MODEL, messages=HELLO, stream=wire.startswith(STREAM))
    assert direct.counted("low", "refused")


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
    relay.low.answer = saying(wire[:9], wire[9:], pause_s=0.01)
    async with raw_client(relay) as client:
        for _ in range(2):  # the connection carries another request
            client.send("POST", CHAT, ASKED)
            if b"x-trailer" in wire:
                assert payload in await client.until(b"0\r\nx-trailer: 1\r\n\r\n" if relay.is_direct else LAST_CHUNK)
            else:
                assert (await client.answer()).body == payload


async def test_a_whole_answer_takes_few_calls(direct: RelayStack) -> None:
    """Of Python, the standard library's with them: what each request pays whether it needs it or not shows here."""
    direct.low.answer = saying(sized(COMPLETION))
    found: list[Counter[str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not LOOP_OR_TEST.search(code.co_filename):
            found[-1][f"{Path(code.co_filename).stem}.{code.co_qualname}"] += 1

    async with raw_client(direct) as client:
        # A beat that comes in between has calls too.
        while min((calls.total() for calls in found), default=inf) > MOST_CALLS and len(found) < 300:
            found.append(Counter())
            sys.setprofile(note)
            try:
                client.send("POST", CHAT, ASKED)
                await client.answer()
            finally:
                sys.setprofile(None)
    fewest = min(found, key=Counter.total)
    assert fewest.total() <= MOST_CALLS, sorted(fewest.items())


async def test_a_body_without_length_ends_with_the_engines_connection(relay: RelayStack) -> None:
    """Its chunks are framed here, whatever their length."""
    events = [b"data: %b\n\n" % (b"x" * (size - 8)) for size in (9, 255, 256, 2047, 2048, 4095, 4096)]
    relay.low.answer = saying(SSE + b"\r\n", *events, pause_s=0.01, then_close=True)
    async with raw_client(relay) as client:
        for _ in range(2):
            client.send("POST", CHAT, ASKED)
            assert (await client.answer()).body == b"".join(events)


async def test_chunks_leave_as_they_came(direct: RelayStack) -> None:
    wire = b"5;x=y\r\ndata:\r\n" + b"0000A\r\n 123456\n\n1\r\n" + chunked(DONE)
    direct.low.answer = saying(STREAM, wire[:30], wire[30:], pause_s=0.01)
    async with raw_client(direct) as client:
        client.send("POST", CHAT, ASKED)
        await client.until(b"\r\n\r\n")
        assert await client.until(LAST_CHUNK) == wire


async def test_our_headers_are_there_and_the_engines_are_kept(relay: RelayStack) -> None:
    theirs = b"x-engine: 1\r\nset-cookie: a\r\nset-cookie: b\r\nserver: engine\r\nx-request-id: theirs\r\n"
    relay.low.answer = saying(sized(COMPLETION, fields=theirs))
    body = b'{ "model" : "%b",\n"an_engines_own": 1.0 }' % MODEL.encode()
    async with raw_client(relay) as client:
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


@pytest.mark.parametrize("body", [b'{"model": "other"}', b'{"model": 7}', b"{}"])
async def test_a_body_that_names_no_model_reaches_no_engine(direct: RelayStack, body: bytes) -> None:
    answer = await post(direct, body)
    codes = {(404, "model_not_found"), (400, "invalid_value")}
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) in codes
    assert direct.low.exchanges == direct.high.exchanges == []


async def test_what_one_engine_cannot_answer_another_does(direct: RelayStack) -> None:
    full = STREAM + chunked(b'data: {"error": {"message": "full", "code": 503}}\n\n', DONE)
    direct.low.answer, direct.high.answer = saying(full), saying(STREAM + chunked(*EVENTS))
    answer = await post(direct)
    assert (answer.status, answer.body, answer.headers["x-crossover-backend"]) == (200, PAYLOAD, "high")
    direct.low.answer, direct.high.answer = saying(sized(b"", 502)), saying(FULL)
    answer = await post(direct)
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (503, "backend_full")
    assert answer.headers["retry-after"] == "1"
    await direct.settle()
    counted = [("low", "backend_full"), ("high", "stop"), ("low", "backend_unavailable"), ("high", "backend_full")]
    assert all(direct.counted(*outcome) for outcome in counted)


async def test_a_query_of_any_bytes_is_no_fault_of_ours(relay: RelayStack) -> None:
    async with raw_client(relay) as client:
        client.writer.write(
            b"POST /v1/chat/completions?q=\xc3\xa9 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16\r\n\r\n" + ASKED
        )
        assert (await client.until(b"\r\n")).split()[1] in {b"200", b"400"}  # h11 refuses them


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


@pytest.mark.parametrize("where", CUTS)
async def test_an_engine_that_goes_away_in_the_middle_cuts_the_answer(relay: RelayStack, where: str) -> None:
    """Never a silent success: the client sees that its answer is not whole."""
    relay.low.answer = saying(CUTS[where], pause_s=0.02, then_close=True)
    async with raw_client(relay) as client:
        client.send("POST", CHAT, ASKED)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
    await relay.settle()
    assert relay.high.exchanges == []
    assert relay.counted("low", "backend_lost")


@pytest.mark.parametrize("wire", [b"", STREAM, STREAM + chunk(EVENTS[0]), STREAM + chunk(EVENTS[0])[:50]])
async def test_a_client_that_leaves_frees_engine_and_lease(relay: RelayStack, wire: bytes) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.say(wire)
        await exchange.left()

    relay.low.answer = answer
    async with raw_client(relay) as client:
        client.send("POST", CHAT, ASKED)
        await eventually(lambda: bool(relay.low.exchanges))
        if wire.endswith(EVENTS[0] + b"\r\n"):
            await client.until(EVENTS[0])
        assert relay.in_flight == {"low": 1, "high": 0}
        client.leave()
        await relay.settle()
    assert relay.low.exchanges[0].was_left
    assert relay.counted("low", "cancelled")


async def test_a_client_that_leaves_after_its_answer_leaves_the_engines_connection(direct: RelayStack) -> None:
    direct.low.answer = saying(STREAM + chunked(*EVENTS))
    for _ in range(3):
        await post(direct, x_crossover_run="run-1")
    await direct.settle()
    assert "crossover_requests_total{" not in direct.metrics, "a run is counted apart from users"
    assert [exchange.was_left for exchange in direct.low.exchanges] == [False] * 3
    assert len({id(exchange.writer) for exchange in direct.low.exchanges}) <= 2  # one, and one of a probe's


async def test_a_client_that_leaves_while_it_sends_its_body_starts_nothing(relay: RelayStack) -> None:
    async with raw_client(relay) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
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
    async with raw_client(patient) as client:
        client.stop_reading()
        client.send("POST", CHAT, ASKED)
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
    async with raw_client(relay) as still:
        still.stop_reading()
        still.send("POST", CHAT, orjson.dumps({"model": MODEL, "user": "much"}))
        neighbours = [asyncio.ensure_future(post(relay)) for _ in range(2)]
        await eventually(lambda: len(relay.low.exchanges) == 3)
        stalled = next(exchange for exchange in relay.low.exchanges if b"much" in exchange.body)
        await eventually(lambda: stalled not in relay.low.live)
        assert any(not neighbour.done() for neighbour in neighbours)
        for neighbour in neighbours:
            assert (await neighbour).body == event("x") * 40
    await relay.settle()
    assert relay.counted("low", "cancelled")


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


async def test_answers_under_way_end_when_the_gateway_stops(relay: RelayStack) -> None:
    """Streams by an error event, what has not begun by a 503, a body in its middle by a cut."""

    async def answer(exchange: Exchange) -> None:
        kind = orjson.loads(exchange.body)["user"]
        await exchange.say({"stream": STREAM + chunk(EVENTS[0]), "sized": sized(COMPLETION)[:-9], "": b""}[kind])
        await exchange.left()

    async def ask(client: RawClient, kind: str) -> None:
        client.send("POST", CHAT, orjson.dumps({"model": MODEL, "user": kind}))

    relay.low.answer = relay.high.answer = answer
    async with raw_client(relay) as streamed, raw_client(relay) as cut, raw_client(relay) as waiting:
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
