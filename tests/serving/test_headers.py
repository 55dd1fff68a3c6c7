"""What stands around the body: ids, the routing decision, and the gateway's own request headers."""

import asyncio
import time

import orjson
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError
from starlette.types import Message

from gateway.client_http import AsgiExchange, Intake, RequestHead
from gateway.core import Need, Route
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.errors import OPENAI_ERRORS
from gateway.serving.own_headers import read_run
from gateway.serving.reply import Reply
from gateway.settings import LimitSettings
from tests.serving.stack import HELLO, MODEL, Stack, Writer, connect, make_stack, raw_client, running

KEY = "operator-secret"
PIN_HIGH = {"x-crossover-pin": "high"}


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_every_answer_says_where_it_came_from_and_why(stack: Stack, writer: Writer, stream: bool) -> None:
    stack.low.script = writer.script("Paris")
    async with raw_client(stack) as client:
        client.ask(stream=stream)
        headers = (await client.answer()).headers
    assert headers["x-crossover-backend"] == "low"
    assert headers["x-crossover-reason"].startswith("threshold in_flight=1 up=5")
    assert headers["x-request-id"] == stack.low.calls[0].request.request_id
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    assert ("content-length" in headers) == (not stream)


async def test_request_ids_are_ours_and_differ(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("Paris")
    body = orjson.dumps({"model": MODEL, "messages": HELLO})
    ids = set()
    async with raw_client(stack) as client:
        for _ in range(3):
            client.send("POST", "/v1/chat/completions", body, x_request_id="mine")
            answer = await client.answer()
            ids.add(answer.headers["x-request-id"])
            assert orjson.loads(answer.body)["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
    assert len(ids) == 3
    assert "mine" not in ids


@pytest.mark.parametrize(
    ("field", "value", "need"),
    [
        ("logit_bias", {"5": 1}, Need.LOGIT_BIAS),
        ("min_p", 0.1, Need.MIN_P),
        ("frequency_penalty", 0.1, Need.PENALTIES),
        ("min_tokens", 1, Need.MIN_TOKENS),
        ("logprobs", True, Need.LOGPROBS),
        ("cache_salt", "secret", Need.CACHE_SALT),
    ],
)
async def test_what_one_engine_cannot_do_goes_to_the_other_and_is_refused_where_none_can(
    client: AsyncOpenAI, stack: Stack, writer: Writer, *, field: str, value: object, need: Need
) -> None:
    stack.low.script = stack.high.script = writer.script("Paris")
    stack.low.capabilities -= {need}
    create = client.chat.completions.with_raw_response.create
    raw = await create(model=MODEL, messages=HELLO, extra_body={field: value})
    assert raw.headers["x-crossover-backend"] == "high"
    stack.high.capabilities -= {need}
    with pytest.raises(BadRequestError) as caught:
        await create(model=MODEL, messages=HELLO, extra_body={field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(("api_key", "is_operator"), [(KEY, True), ("someone", False)])
async def test_with_an_operator_key_only_operators_pin(
    language: ModelLanguage, writer: Writer, api_key: str, is_operator: bool
) -> None:
    async with running(make_stack(language, operator_key=KEY)) as stack, connect(stack, api_key) as client:
        stack.low.script = stack.high.script = writer.script("Paris")
        unpinned = {"x-crossover-run": "run-1"}
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=unpinned)  # everyone may ask
        if is_operator:
            create = client.chat.completions.with_raw_response.create
            raw = await create(model=MODEL, messages=HELLO, extra_headers=PIN_HIGH)
            assert (raw.headers["x-crossover-backend"], raw.headers["x-crossover-reason"]) == ("high", "pin")
        else:
            with pytest.raises(AuthenticationError):
                await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=PIN_HIGH)
        assert len(stack.high.calls) == is_operator


async def test_a_run_is_counted_apart_from_users(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("Paris")
    await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers={"x-crossover-run": "run-1.a"})
    assert stack.low.calls[0].request.run == "run-1.a"
    await stack.settle()
    assert f'crossover_run_requests_total{{backend="low",model="{MODEL}",outcome="stop"}} 1.0' in stack.metrics
    assert "crossover_requests_total{" not in stack.metrics


@pytest.mark.parametrize(
    ("run", "is_valid"),
    [("x" * 128, True), ("A.Z_a:z-09", True), ("", False), ("a b", False), ("x" * 129, False), ('a"b', False)],
)
def test_a_run_id_is_what_a_label_may_be(run: str, is_valid: bool) -> None:
    head = RequestHead("/", b"/", ((b"x-crossover-run", run.encode()),))
    if is_valid:
        assert read_run(head) == run
        return
    with pytest.raises(InvalidRequest) as caught:
        read_run(head)
    assert caught.value.param == "x-crossover-run"


@pytest.mark.parametrize(("moves", "shown"), [(0, b""), (2, b', moves;desc="2"')])
async def test_server_timing_holds_the_gateways_time_and_the_engines_and_how_many_there_were(
    moves: int, shown: bytes
) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    exchange = AsgiExchange(scope, receive, send, Intake(LimitSettings()))
    # On the reply's clock: the request arrived; an engine was asked; there is an answer.
    reply = Reply(exchange, "r1", iter((10.0, 10.5, 12.25)).__next__, OPENAI_ERRORS)
    async with exchange.answering():
        for _ in range(1 + moves):
            reply.start(Route("low", "pin"))
        reply.send_json(b"{}")
    assert dict(sent[0]["headers"])[b"server-timing"] == b"gateway;dur=500.00, engine;dur=1750.00" + shown


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/huge", "/v1/nothing"])
async def test_answers_without_an_engine_have_an_id_too(stack: Stack, path: str) -> None:
    async with raw_client(stack) as client:
        client.send("GET", path)
        answer = await client.answer()
    assert len(answer.headers["x-request-id"]) == 32


async def test_a_request_is_on_its_way_before_what_has_come_with_it_is_read(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("Rome")
    long = " ".join(map(str, range(3000)))  # milliseconds of reading, yet under the size that is read on a thread
    async with raw_client(stack) as first, raw_client(stack) as second:
        for client in (first, second):
            client.ask()
            assert (await client.answer()).status == 200
        start = time.perf_counter()
        first.ask()
        second.ask(messages=[{"role": "user", "content": long}])
        assert (await second.answer()).status == 400  # it has been read, and is longer than the model's context
        its_ms = 1000 * (time.perf_counter() - start)
        timing = (await first.answer()).headers["server-timing"]
    assert float(timing.removeprefix("gateway;dur=").partition(",")[0]) < its_ms / 3
