"""The relay lane's side to the server: an engine that speaks OpenAI's API, byte for byte over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest

from gateway.backends.relay import RelayServer
from gateway.core import RelayCall, RelayRequest
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendLost,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
)
from gateway.settings import RelaySettings
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
from tests.fakes.sink import settled

REQUEST = RelayRequest("req-1", "m", b"/v1/chat/completions", (b"content-type: application/json",), b'{"model":"m"}')
EVENTS = (event("Par"), event("is"), event(None, "stop"), usage_event(7, 3), DONE)
FRAMED = chunked(*EVENTS)


def _split(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b": ")
    return name, value


class RecordingRelaySink:
    """A core.RelaySink that records what it receives, and every breach of its contract."""

    def __init__(self, *, takes_chunks: bool = True) -> None:
        self.takes_chunks = takes_chunks
        self.call: RelayCall
        self.status: int | None = None
        self.fields: tuple[tuple[bytes, bytes], ...] = ()
        self.length: int | None = None
        self.is_framed = False
        self.data = b""
        self.error: GatewayError | None = None
        self.may_append = False
        self.is_over = False
        self.breaches: list[str] = []

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool) -> None:
        self._check("begin", has_begun=False)
        self.status, self.length, self.is_framed = status, length, is_framed
        self.fields = tuple(_split(line) for line in lines)

    def write(self, data: bytes) -> None:
        self._check("write", has_begun=True)
        if not data:
            self.breaches.append("write of nothing")
        self.data += data

    def splice(self) -> Callable[[bytes], None]:
        return self.write

    def write_failed(self) -> None:
        self.breaches.append("lost")

    def finish(self, data: bytes = b"") -> None:
        self._check("finish", has_begun=True)
        if data and self.is_framed:
            self.breaches.append("an end that is not in chunks")
        self.data += data
        self.is_over = True

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        self._check("fail", has_begun=self.status is not None)
        self.error, self.may_append, self.is_over = error, may_append, True

    def cancel(self) -> None:
        """From now on every call of the sink is a breach."""
        self.is_over = True
        self.call.cancel()

    async def over(self) -> "RecordingRelaySink":
        await settled(lambda: self.is_over, "the answer over")
        return self

    async def received(self, data: bytes) -> None:
        await settled(lambda: self.data.endswith(data), f"{data!r} received")

    def _check(self, word: str, *, has_begun: bool) -> None:
        if self.is_over or has_begun is (self.status is None):
            self.breaches.append(word)


class Bench:
    """A RelayServer and its engine; checks in the end that neither holds anything."""

    def __init__(self, engine: FakeOpenAI, server: RelayServer) -> None:
        self.engine = engine
        self.server = server
        self.sinks: list[RecordingRelaySink] = []

    def ask(self, request: RelayRequest = REQUEST, *, takes_chunks: bool = True) -> RecordingRelaySink:
        sink = RecordingRelaySink(takes_chunks=takes_chunks)
        self.sinks.append(sink)
        sink.call = self.server.relay(request, sink)
        assert sink.status is None
        assert not sink.is_over, "the sink must not be called from inside relay()"
        return sink

    async def answer_to(self, request: RelayRequest = REQUEST, *, takes_chunks: bool = True) -> RecordingRelaySink:
        return await self.ask(request, takes_chunks=takes_chunks).over()


@asynccontextmanager
async def bench_of(answer: Answer, idle_timeout_s: float = 60.0, api_key: str | None = None) -> AsyncIterator[Bench]:
    async with FakeOpenAI(answer).serving() as engine:
        settings = RelaySettings(
            "engine", engine.url, connect_timeout_s=5.0, idle_timeout_s=idle_timeout_s, api_key=api_key
        )
        bench = Bench(engine, RelayServer(settings))
        yield bench
        await settled(lambda: not len(bench.server.calls), repr(bench.server))
        await bench.server.aclose()
        await settled(lambda: not engine.connections, f"{engine.connections} connections left")
        assert [sink.breaches for sink in bench.sinks if sink.breaches] == []


def at_each_cut(wire: bytes, head: bytes) -> Answer:
    """The nth request's answer arrives in two reads, cut before its nth byte; for the 0th, byte by byte."""

    async def answer(exchange: Exchange) -> None:
        at = int(exchange.body)
        answer = head + wire
        if at == 0:
            await exchange.say(*(bytes([byte]) for byte in answer))
        else:
            await exchange.say(answer[:at], answer[at:], pause_s=0.05)

    return answer


ANSWERS = {
    "chunked": (STREAM, FRAMED),
    "each line in a chunk of its own": (STREAM, chunked(*b"".join(EVENTS).splitlines(keepends=True))),
    "sized": (SSE + b"content-length: %d\r\n\r\n" % len(b"".join(EVENTS)), b"".join(EVENTS)),
    "CRLF": (STREAM, chunked(*(part.replace(b"\n", b"\r\n") for part in EVENTS))),
    "CRLF, sized": (
        SSE + b"content-length: %d\r\n\r\n" % len(b"".join(EVENTS).replace(b"\n", b"\r\n")),
        b"".join(EVENTS).replace(b"\n", b"\r\n"),
    ),
}


@pytest.mark.parametrize("takes_chunks", [True, False], ids=["framed", "unframed"])
@pytest.mark.parametrize("form", ANSWERS)
async def test_an_answer_is_the_same_however_its_reads_are_cut(form: str, takes_chunks: bool) -> None:
    """Its bytes, and its events, usage and finish_reason."""
    head, wire = ANSWERS[form]
    lines_end = b"\r\n" if form.startswith("CRLF") else b"\n"
    payload = b"".join(EVENTS).replace(b"\n", lines_end)
    async with bench_of(at_each_cut(wire, head)) as bench:
        sinks = [
            bench.ask(replace(REQUEST, body=b"%d" % at), takes_chunks=takes_chunks)
            for at in range(0, len(head) + len(wire), 5)  # the stride shares no factor with any piece's length
        ]
        for sink in sinks:
            await sink.over()
        is_framed = takes_chunks and head == STREAM
        assert {repr(sink.error) for sink in sinks} == {"None"}
        assert {sink.is_framed for sink in sinks} == {is_framed}
        assert {sink.data for sink in sinks} == {wire if is_framed else payload}
        counts_exactly = form != "each line in a chunk of its own" or not takes_chunks
        assert {sink.call.events for sink in sinks} == {4} or not counts_exactly
        assert {sink.call.usage for sink in sinks} == {(7, 3)}
        assert {sink.call.finish_reason for sink in sinks} == {"stop"}


async def test_a_status_fields_and_body_pass_unchanged() -> None:
    body = b'{"error": {"message": "no", "type": "x", "code": null}}\n'
    for status in (200, 201, 400, 401, 404, 422, 500, 599):
        async with bench_of(saying(sized(body, status, fields=b"X-Own: 1\r\nx-own: 2\r\n"))) as bench:
            for takes_chunks in (True, False):
                sink = await bench.answer_to(takes_chunks=takes_chunks)
                assert (sink.status, sink.data, sink.length, sink.error) == (status, body, len(body), None)
                assert sink.call.status == status
                assert [*sink.fields] == [(b"content-type", b"application/json"), (b"x-own", b"1"), (b"x-own", b"2")]
                assert sink.call.usage == (0, 0)
                assert sink.call.finish_reason is None
            assert bench.engine.accepted == 1


async def test_a_status_is_kept_when_its_body_comes_in_pieces() -> None:
    wire = sized(b'{"error": "no such model"}', 404)
    async with bench_of(saying(wire[:-9], wire[-9:], pause_s=0.02)) as bench:
        sink = await bench.answer_to()
        assert (sink.status, sink.call.status, sink.data) == (404, 404, b'{"error": "no such model"}')


async def test_fields_of_the_connection_do_not_come_back() -> None:
    answer = sized(
        b"{}",
        fields=b"connection: x-hop, keep-alive\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\ntrailer: x\r\nupgrade: h2c\r\n"
        b"date: x\r\nserver: y\r\nx-request-id: theirs\r\nx-end: 1\r\n",
    )
    async with bench_of(saying(answer)) as bench:
        sink = await bench.answer_to(REQUEST)
        assert [name for name, _ in sink.fields] == [b"content-type", b"x-end"]


async def test_the_engine_sees_the_request_as_it_came_with_a_head_of_ours() -> None:
    lines = (b"content-type: application/json", b"x-custom: a", b"x-custom: b")
    body = orjson.dumps({"model": "m", "text": "x" * 3_000_000})
    asked = RelayRequest("our-id", "m", b"/v1/embeddings?a=1&b=%2F", lines, body)
    async with bench_of(saying(sized(b"{}")), api_key="secret") as bench:
        await bench.answer_to(asked)
        (exchange,) = bench.engine.exchanges
        assert exchange.request_line == b"POST /v1/embeddings?a=1&b=%2F HTTP/1.1"
        assert exchange.body == body
        assert sorted(exchange.fields) == [
            (b"authorization", b"Bearer secret"), (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"), (b"host", bench.server.client.host), (b"x-custom", b"a"),
            (b"x-custom", b"b"), (b"x-request-id", b"our-id"),
        ]  # fmt: skip
        assert "secret" not in repr(bench.server)


async def test_answers_whose_heads_differ_in_their_length_alone_keep_their_lengths() -> None:
    async with bench_of(saying(sized(b"{}"))) as bench:
        for body in (b"{}", b'{"a": 1}', b"{ }", b"", b"x" * 100_000):
            bench.engine.answer = saying(sized(body))
            sink = await bench.answer_to(REQUEST)
            assert (sink.length, sink.data) == (len(body), body)


async def test_without_a_key_of_ours_the_engine_gets_none() -> None:
    async with bench_of(saying(sized(b"{}"))) as bench:
        await bench.answer_to(REQUEST)
        assert bench.engine.exchanges[0].field(b"authorization") == []


async def test_megabytes_pass_unchanged_in_any_framing() -> None:
    payload = bytes(range(256)) * 20_000
    pieces = [payload[at : at + 700_001] for at in range(0, len(payload), 700_001)]
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + payload
    plain = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    for wire in (sized(payload), plain + chunked(*pieces), endless):
        async with bench_of(saying(wire, then_close=wire is endless)) as bench:
            for takes_chunks in (True, False):
                sink = await bench.answer_to(takes_chunks=takes_chunks)
                assert sink.data == (chunked(*pieces) if sink.is_framed else payload)
                assert sink.error is None


ERROR_EVENTS = [
    (b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}', 400),
    (b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":422}', 422),
]


@pytest.mark.parametrize(("error", "status"), ERROR_EVENTS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("takes_chunks", [True, False], ids=["framed", "unframed"])
async def test_an_error_that_comes_first_is_a_status(
    error: bytes, status: int, line_end: bytes, takes_chunks: bool
) -> None:
    first = b"data: " + error + 2 * line_end
    wire = STREAM + chunked(first, DONE)
    for pieces in ([wire], [wire[:-40], wire[-40:]], [STREAM, chunk(first), chunk(DONE) + LAST_CHUNK]):
        async with bench_of(saying(*pieces, pause_s=0.01)) as bench:
            sink = await bench.answer_to(takes_chunks=takes_chunks)
            assert (sink.status, sink.is_framed, sink.length) == (status, False, len(sink.data))
            assert dict(sink.fields)[b"content-type"] == b"application/json"
            error_sent = orjson.loads(sink.data)["error"]
            assert (error_sent["message"], error_sent["code"]) == ("too long", status)
            assert sink.call.status == status


@pytest.mark.parametrize(
    ("code", "error"),
    [(503, BackendFull), (429, BackendFull), (502, BackendUnavailable), (500, BackendError), (None, BackendError)],
)
async def test_an_engine_failure_in_the_first_event_becomes_the_error_of_its_status(
    code: int | None, error: type[GatewayError]
) -> None:
    first = b"data: " + orjson.dumps({"error": {"message": "secret prompt", "code": code}}) + b"\n\n"
    async with bench_of(saying(STREAM + chunked(first, DONE))) as bench:
        sink = await bench.answer_to()
        assert (sink.status, type(sink.error)) == (None, error)
        assert sink.error is not None
        assert "secret" not in sink.error.message


@pytest.mark.parametrize(
    "first",
    [
        event('"error": {"code": 400}'), b'data: {"choices": [], "error": null}\n\n', b'data: {"error": "text"}\n\n',
        b'data: {"error": {"code": "model_not_found"}}\n\n', b'data: {"error": {"code": 1e999}}\n\n',
        b'data: ["error"]\n\n', b'data: {"error\n\n', b'data: "error"\n\n', b'data: 1 "error"\n\n', b": ping\n\n",
        pytest.param(event("x" * 200_000), id="long"),
        b"\n\n",
    ],
)  # fmt: skip
async def test_what_only_looks_like_an_error_passes(first: bytes) -> None:
    wire = chunked(first, DONE)
    async with bench_of(saying(STREAM + wire)) as bench:
        sink = await bench.answer_to()
        assert (sink.status, sink.data, sink.error) == (200, wire, None)


async def test_an_error_event_that_is_not_the_first_passes() -> None:
    wire = chunked(event("Par"), b'data: {"error":{"message":"x","code":503}}\n\n', DONE)
    async with bench_of(saying(STREAM + wire)) as bench:
        assert (await bench.answer_to()).data == wire


async def test_a_stream_without_events_passes() -> None:
    cut = chunked(DONE[:-1])  # whose end counts for no event
    empty = SSE + b"content-length: 0\r\n\r\n"
    for wire, payload in ((STREAM + LAST_CHUNK, LAST_CHUNK), (empty, b""), (STREAM + cut, cut)):
        async with bench_of(saying(wire)) as bench:
            sink = await bench.answer_to()
            assert (sink.status, sink.data, sink.error, sink.call.events) == (200, payload, None, 0)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_body_is_over_with_its_head(status: int) -> None:
    async with bench_of(saying(f"HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n".encode())) as bench:
        for _ in range(2):
            sink = await bench.answer_to()
            assert (sink.status, sink.data, sink.error) == (status, b"", None)
        assert bench.engine.accepted == 1


@pytest.mark.parametrize(
    ("status", "error"), [(429, BackendFull), (503, BackendFull), (502, BackendUnavailable), (504, BackendUnavailable)]
)
async def test_a_status_that_speaks_of_the_engine_is_its_error(status: int, error: type[GatewayError]) -> None:
    async with bench_of(saying(sized(b'{"error":"secret prompt"}', status))) as bench:
        sink = await bench.answer_to()
        assert (sink.status, type(sink.error)) == (None, error)
        assert isinstance(sink.error, BackendUnavailable)
        assert (sink.error.was_lost, "secret" in sink.error.message) == (issubclass(error, BackendFull), False)


PHASES = {
    "before the head": (b"", BackendUnavailable, False),
    "within the head": (STREAM[:30], BackendUnavailable, False),
    "after the head": (STREAM, BackendUnavailable, False),
    "within the first event": (STREAM + chunk(event("Par"))[:-9], BackendUnavailable, False),
    "after an event": (STREAM + chunk(event("Par")), BackendLost, True),
    "after an event with CRLF": (STREAM + chunk(event("Par").replace(b"\n", b"\r\n")), BackendLost, True),
    "after half an event": (STREAM + chunk(event("Par")) + chunk(event("is")[:-1]), BackendLost, False),
    "within a chunk": (STREAM + chunk(event("Par")) + chunk(event("is"))[:-9], BackendLost, False),
    "before a chunk's line end": (STREAM + chunk(event("Par"))[:-2], BackendLost, False),
    "within a chunk's size": (STREAM + chunk(event("Par")) + b"f", BackendLost, False),
    "before the last chunk": (STREAM + chunk(event("Par")) + chunk(DONE), BackendLost, True),
    "within a sized answer": (sized(b"x" * 1000)[:-9], BackendLost, False),
    "within a sized stream": (SSE + b"content-length: 9999\r\n\r\n" + event("Par"), BackendLost, False),
    "after the head of a sized answer": (sized(b"x" * 1000)[:-1000], BackendUnavailable, False),
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("phase", PHASES)
async def test_an_engine_that_goes_away(phase: str, reset: bool) -> None:
    """An error event may follow only between two events, and only if the head declares no length."""
    wire, error, may_append = PHASES[phase]

    async def answer(exchange: Exchange) -> None:
        await exchange.say(wire, pause_s=0.01)
        (exchange.abort if reset else exchange.close)()

    async with bench_of(answer) as bench:
        sink = await bench.answer_to()
        assert (type(sink.error), sink.may_append) == (error, may_append)
        assert (sink.status is None) is (error is BackendUnavailable)


@pytest.mark.parametrize("takes_chunks", [True, False], ids=["framed", "unframed"])
async def test_an_engine_that_goes_away_after_an_event_unframed(takes_chunks: bool) -> None:
    wire = STREAM + chunk(event("Par"))
    async with bench_of(saying(wire, pause_s=0.05, then_close=True)) as bench:
        sink = await bench.answer_to(takes_chunks=takes_chunks)
        assert (type(sink.error), sink.may_append) == (BackendLost, True)
        assert sink.data == (chunk(event("Par")) if takes_chunks else event("Par"))


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HELLO\r\n\r\n", b"HTTP/1.1 200 OK\r\nset-cookie: a\nx: b\r\n\r\n",
        b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n", STREAM + b"zz\r\n",
        STREAM + chunk(event("Par"))[:-2] + b"XX", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    ],
)  # fmt: skip
async def test_nonsense_before_an_answer_is_a_protocol_error(nonsense: bytes) -> None:
    async with bench_of(saying(nonsense)) as bench:
        sink = await bench.answer_to()
        assert (sink.status, type(sink.error)) == (None, BackendProtocolError)


async def test_nonsense_within_an_answer_ends_it() -> None:
    async with bench_of(saying(STREAM, chunk(event("Par")), b"zz\r\n", pause_s=0.05)) as bench:
        sink = await bench.answer_to()
        assert (sink.data, type(sink.error), sink.may_append) == (chunk(event("Par")), BackendLost, True)


async def test_a_gigabyte_that_never_comes_is_held_by_nobody() -> None:
    async with bench_of(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n{")) as bench:
        sink = bench.ask()
        await sink.received(b"{")
        assert sink.length == 1_000_000_000
        sink.cancel()


@pytest.mark.parametrize("surplus", [b"garbage", sized(b"another answer"), b"\r\n"])
async def test_what_follows_an_answer_is_never_taken_for_the_next(surplus: bytes) -> None:
    async with bench_of(saying(STREAM + FRAMED + surplus)) as bench:
        for _ in range(3):
            sink = await bench.answer_to()
            assert (sink.data, sink.error) == (FRAMED, None)
        assert bench.engine.accepted == 3


async def test_a_silent_engine_is_given_up_in_time() -> None:
    for pieces, has_begun in (((b"",), False), ((STREAM,), False), ((STREAM, chunk(event("Par"))), True)):
        async with bench_of(saying(*pieces, pause_s=0.02), idle_timeout_s=0.2) as bench:
            sink = await bench.answer_to()
            assert type(sink.error) is BackendTimeout
            assert (sink.status is not None, sink.may_append) == (has_begun, has_begun)
            await settled(lambda: not bench.engine.connections, "the engine's connection closed")


async def test_an_engine_that_speaks_now_and_then_is_not_given_up() -> None:
    async with bench_of(saying(STREAM, *map(chunk, EVENTS), LAST_CHUNK, pause_s=0.1), idle_timeout_s=0.3) as bench:
        assert (await bench.answer_to()).error is None


async def test_an_engine_that_is_held_up_is_not_given_up() -> None:
    """Silence while the client does not read is not the engine's."""
    async with bench_of(saying(STREAM, *map(chunk, EVENTS), LAST_CHUNK, pause_s=0.02), idle_timeout_s=0.2) as bench:
        sink = bench.ask()
        await sink.received(chunk(EVENTS[0]))
        sink.call.pause()
        await asyncio.sleep(0.4)
        assert not sink.is_over
        sink.call.resume()
        assert ((await sink.over()).data, sink.error) == (FRAMED, None)


async def test_pausing_holds_the_engine_up_and_resuming_brings_every_byte() -> None:
    piece = chunk(b"data: " + b"x" * 65_536 + b"\n\n")
    count = 400

    async with bench_of(saying(STREAM, *[piece] * count, LAST_CHUNK)) as bench:
        sink = bench.ask()
        await settled(lambda: len(sink.data) > 0, "the answer begun")
        sink.call.pause()
        sink.call.pause()
        before = len(sink.data)
        (exchange,) = bench.engine.exchanges
        written = -1
        while exchange.written != written:  # until the sockets between are full
            written = exchange.written
            await asyncio.sleep(0.1)
        assert written < count * len(piece)
        assert len(sink.data) <= before + 262_144, "at most what one read may still bring"
        sink.call.resume()
        assert (await sink.over()).data == piece * count + LAST_CHUNK
        assert (sink.call.events, bench.engine.accepted) == (count, 1)


async def test_pausing_before_there_is_a_connection_counts() -> None:
    async with bench_of(saying(STREAM, *[chunk(event("x" * 65_536))] * 100, LAST_CHUNK)) as bench:
        sink = bench.ask()
        sink.call.pause()
        await settled(lambda: bool(bench.engine.exchanges), "the request sent")
        await asyncio.sleep(0.2)
        assert sink.data == b""
        sink.call.resume()
        assert (await sink.over()).error is None


@pytest.mark.parametrize("wire", [b"", STREAM, STREAM + chunk(event("Par"))])
async def test_cancelling_closes_the_engines_connection_and_is_silent(wire: bytes) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.say(wire)
        await exchange.left()

    async with bench_of(answer) as bench:
        sink = bench.ask()
        await settled(lambda: bool(bench.engine.exchanges), "the request sent")
        await sink.received(wire.removeprefix(STREAM))
        sink.cancel()
        sink.call.cancel()
        sink.call.pause()
        sink.call.resume()
        await settled(lambda: bench.engine.exchanges[0].was_left, "the engine left")


async def test_cancelling_at_once_leaves_the_engine() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.left()

    async with bench_of(answer) as bench:
        sink = bench.ask()
        sink.cancel()
        await settled(lambda: bool(bench.engine.exchanges), "the request, which had gone ahead")
        await settled(lambda: bench.engine.exchanges[0].was_left, "the engine left")
        assert (sink.data, sink.error) == (b"", None)


async def test_cancelling_after_the_end_keeps_the_connection() -> None:
    async with bench_of(saying(STREAM + FRAMED)) as bench:
        sink = await bench.answer_to()
        sink.call.cancel()
        await bench.answer_to()
        assert bench.engine.accepted == 1


async def test_readiness_is_the_health_paths_status() -> None:
    async with bench_of(saying()) as bench:
        assert await bench.server.is_ready()
        bench.engine.health = 503
        assert not await bench.server.is_ready()
        await bench.engine.stop()
        assert not await bench.server.is_ready()
        await bench.engine.start()


async def test_an_engine_that_stops_being_ready_loses_what_has_not_begun_and_nothing_else() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.body == b"begins":
            await exchange.say(STREAM, chunk(EVENTS[0]))
        await exchange.left()

    async with bench_of(answer) as bench:
        begun = bench.ask(replace(REQUEST, body=b"begins"))
        await begun.received(chunk(EVENTS[0]))
        waiting = bench.ask()
        await settled(lambda: len(bench.engine.exchanges) == 2, "both asked")
        bench.engine.health = 500
        await bench.server.is_ready()
        assert type((await waiting.over()).error) is BackendUnavailable
        assert not begun.is_over
        begun.cancel()


@pytest.mark.parametrize("generates", [True, False])
async def test_an_engine_that_lets_a_probe_wait_is_ready_if_it_generates(
    generates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.calls.READY_TIMEOUT_S", 0.3)

    async def answer(exchange: Exchange) -> None:
        if generates and exchange.body == b"begins":
            await exchange.say(STREAM, *[chunk(EVENTS[0])] * 20, pause_s=0.1)
        await exchange.left()

    async with bench_of(answer) as bench:
        sinks = [bench.ask(replace(REQUEST, body=body)) for body in (b"begins", b"waits")]
        bench.engine.answers_probes = False
        assert await bench.server.is_ready() == generates
        assert [sink.is_over for sink in sinks] == [not generates] * 2
        for sink in sinks:
            sink.cancel()


async def test_closing_ends_what_has_begun_by_an_error_that_nobody_retries() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.say(STREAM, chunk(EVENTS[0]))
        await exchange.left()

    async with bench_of(answer) as bench:
        sink = bench.ask()
        await sink.received(chunk(EVENTS[0]))
        await bench.server.aclose()
        assert type((await sink.over()).error) is BackendLost


async def test_many_short_events_cost_no_more_the_longer_the_answer() -> None:
    """The reads kept for an answer's usage are bounded, however short each read is."""
    async with bench_of(saying(STREAM, *[chunk(b"data: 1\n\n")] * 2000, LAST_CHUNK)) as bench:
        sink = await bench.answer_to()
        assert sink.call.events == 2000
        assert len(sink.call.kept_before + sink.call.kept) < 100_000  # type: ignore[attr-defined]  # RelayedAnswer's


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"data: %b\n\n" % (b"x" * 80), 1),
        (b"data: %b\n\ndata: 2\n\n" % (b"x" * 80), 2),
        (b"event: word\ndata: %b\n\n" % (b"x" * 80), 1),
        (b"data: %b\n\ndata: and no end" % (b"x" * 80), 1),
        (b"data: %b" % (b"x" * 80), 0),
        (b"data: %bx\n" % (b"x" * 80), 0),
        (b": a comment\n\n: another\n\n%b" % (b"x" * 80), 2),
    ],
)
async def test_events_are_counted_however_they_lie_in_chunks(payload: bytes, count: int) -> None:
    pieces = [chunk(EVENTS[0]), *[chunk(payload)] * 3, LAST_CHUNK]
    async with bench_of(saying(STREAM, *pieces, pause_s=0.02)) as bench:
        sink = await bench.answer_to()
        assert (sink.data, sink.call.events) == (b"".join(pieces), 1 + 3 * count)


@pytest.mark.parametrize("end", [b"x\n", b"\rx", b"xx"])
async def test_a_chunk_whose_end_is_none_is_not_passed_on(end: bytes) -> None:
    long = chunk(b"data: %b\n\n" % (b"x" * 80))
    async with bench_of(saying(STREAM, chunk(EVENTS[0]), long, long[:-2] + end, pause_s=0.02)) as bench:
        sink = await bench.answer_to()
        assert isinstance(sink.error, BackendError)
        assert not sink.data.endswith(end)


async def test_an_answer_that_is_no_stream_has_no_events() -> None:
    body = b'{\n\n"usage": {"prompt_tokens": 5, "completion_tokens": 2}, "object": "list"\n\n}'
    async with bench_of(saying(sized(body[:9])[:-9] + body[:9])) as bench:
        assert (await bench.answer_to()).call.events == 0
    async with bench_of(saying(sized(body)[:-30], sized(body)[-30:], pause_s=0.05)) as bench:
        sink = await bench.answer_to()
        assert (sink.call.events, sink.call.usage, sink.call.finish_reason) == (0, (5, 2), None)


@pytest.mark.parametrize("count", [b"99999999999999999999", b"9" * 5000, b"-5", b"1.5", b"1e9", b"null", b'"7"', b""])
@pytest.mark.parametrize("spacing", [b":", b" : "])
async def test_a_count_that_is_none_is_not_counted(count: bytes, spacing: bytes) -> None:
    body = b'{"usage": {"prompt_tokens"%b%b, "completion_tokens"%b%b, "total_tokens": 1}}'
    async with bench_of(saying(sized(body % (spacing, count, spacing, count)))) as bench:
        assert (await bench.answer_to()).call.usage == (0, 0)


async def test_a_content_type_is_read_in_any_case() -> None:
    head = STREAM.replace(b"text/event-stream", b"Text/Event-Stream")
    first = b"data: " + ERROR_EVENTS[0][0] + b"\n\n"
    async with bench_of(saying(head + chunked(first, DONE))) as bench:
        assert (await bench.answer_to()).status == 400
