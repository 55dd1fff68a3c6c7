"""Limits of keys over a real socket: what each API's clients get, what is given back, what usage adds up to."""

import asyncio
import inspect
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest
from anthropic import AsyncAnthropic
from anthropic import RateLimitError as AnthropicRateLimited
from openai import AsyncOpenAI, NotFoundError, RateLimitError

from gateway.access import KeyFile, Limits, Scope, UsageLog, Use
from gateway.errors import BackendLost, InvalidRequest
from gateway.language import ModelLanguage
from gateway.serving.restraint import make_plain, read_token_limit, restrain_body
from tests.fakes.backend import Pause, Script
from tests.fakes.openai import DONE, STREAM, Exchange, chunked, event, saying, sized, usage_event
from tests.serving.relay_stack import relaying
from tests.serving.stack import (
    HELLO,
    MODEL,
    ServedApp,
    Stack,
    Writer,
    connect,
    eventually,
    make_stack,
    raw_client,
    running,
)

INFERENCE = (Scope.INFERENCE,)


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path)


def make(language: ModelLanguage, folder: Path, script: Script, **settings: Any) -> Stack:  # Any: of the settings
    stack = make_stack(language, state_folder=folder, **settings)
    stack.low.script = stack.high.script = script
    return stack


@asynccontextmanager
async def opened(
    language: ModelLanguage, file: KeyFile, script: Script, limits: Limits | None
) -> AsyncIterator[tuple[Stack, AsyncOpenAI]]:
    """A gateway, and a client with a key of those limits."""
    secret = file.create("alice", INFERENCE, None, limits)
    folder = Path(str(file)).parent
    async with running(make(language, folder, script)) as stack, connect(stack, secret) as client:
        yield stack, client


def use_of(stack: ServedApp) -> Use:
    return stack.app.access.meter.read("alice", Limits())


async def used(stack: ServedApp) -> list[tuple[int, int, int]]:
    await stack.app.access.usage.write()
    return [row[2:] for row in stack.app.access.usage.read(date.min, date.max)]


async def test_an_answer_has_openais_headers_and_a_refusal_too(
    language: ModelLanguage, writer: Writer, file: KeyFile
) -> None:
    limits = Limits(requests_per_minute=2, tokens_per_minute=6000)
    async with opened(language, file, writer.script("Paris"), limits) as (_, client):
        asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 50}  # Any: of the client's own types
        raw = await client.chat.completions.with_raw_response.create(**asked)
        usage = raw.parse().usage
        assert usage is not None
        headers = raw.headers
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("2", "1")
        assert (headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-reset-requests"]) == ("6000", "30s")
        assert int(headers["x-ratelimit-remaining-tokens"]) == 6000 - usage.prompt_tokens - 50
        assert headers["x-ratelimit-reset-tokens"].endswith("ms")
        async with client.chat.completions.with_streaming_response.create(**asked, stream=True) as streamed:
            assert streamed.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(RateLimitError) as caught:
            await client.chat.completions.create(**asked)
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert "key alice is 2 requests a minute" in caught.value.message
        refused = caught.value.response.headers
        assert 28 <= int(refused["retry-after"]) <= 30
        assert (refused["x-ratelimit-remaining-requests"], refused["x-ratelimit-limit-requests"]) == ("0", "2")


async def test_each_api_has_its_own_form_of_the_error(
    language: ModelLanguage, writer: Writer, file: KeyFile, tmp_path: Path
) -> None:
    secret = file.create("alice", INFERENCE, None, Limits(tokens_per_day=1))
    async with running(make(language, tmp_path, writer.script("Paris"))) as stack:
        async with connect(stack, secret) as client:
            for call in (
                client.chat.completions.create(model=MODEL, messages=HELLO),
                client.completions.create(model=MODEL, prompt="Hello, how are you?"),
                client.responses.create(model=MODEL, input="Hello"),
            ):
                with pytest.raises(RateLimitError) as caught:
                    await call
                assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
                assert int(caught.value.response.headers["retry-after"]) <= 86_400
                assert caught.value.response.headers["x-should-retry"] == "false"
        async with AsyncAnthropic(base_url=stack.url, api_key=secret, max_retries=0) as anthropic:
            with pytest.raises(AnthropicRateLimited) as limited:
                await anthropic.messages.create(
                    model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
                )
        body: Any = limited.value.body  # Any: JSON
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
        assert "key alice is 1 tokens a day" in body["error"]["message"]
        assert not stack.requests
        assert 'crossover_refused_total{code="insufficient_quota"} 4.0' in stack.metrics


async def test_only_allowed_models_are_shown_and_answer(
    language: ModelLanguage, writer: Writer, file: KeyFile, tmp_path: Path
) -> None:
    secrets = [file.create(name, INFERENCE, None, Limits(models=(name,))) for name in ("other", MODEL)]
    async with running(make(language, tmp_path, writer.script("Paris"))) as stack:
        async with connect(stack, secrets[0]) as client:
            assert [model.id async for model in client.models.list()] == []
            for call in (
                client.chat.completions.create(model=MODEL, messages=HELLO),
                client.models.retrieve(MODEL),
                client.post("/tokenize", body={"model": MODEL, "prompt": "Hello"}, cast_to=object),
                client.responses.create(input="Hello"),
            ):
                with pytest.raises(NotFoundError) as caught:
                    await call
                assert caught.value.code in {"model_not_found", "unknown_url"}
        async with connect(stack, secrets[1]) as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL
            await client.chat.completions.create(model=MODEL, messages=HELLO)


@pytest.mark.parametrize(
    ("fields", "priority"),
    [({}, 0), ({"priority": -5}, 0), ({"service_tier": "priority"}, 0), ({"priority": 3}, 3)],
)
async def test_a_priority_beyond_the_keys_is_lowered(
    language: ModelLanguage, writer: Writer, file: KeyFile, fields: dict[str, object], priority: int
) -> None:
    async with opened(language, file, writer.script("Paris"), Limits(priority=0)) as (stack, client):
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=fields)
        assert [request.priority for request in stack.requests] == [priority]


async def test_in_flight_is_exact_and_a_client_that_leaves_gives_its_place_back(
    language: ModelLanguage, writer: Writer, file: KeyFile, tmp_path: Path
) -> None:
    limits = Limits(in_flight=3, tokens_per_day=10**6)
    secret = file.create("alice", INFERENCE, None, limits)
    body = orjson.dumps({"model": MODEL, "messages": HELLO, "n": 2, "max_tokens": 50, "stream": True})
    one = orjson.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 50})
    async with running(make(language, tmp_path, [Pause()])) as stack:
        async with raw_client(stack) as first, raw_client(stack) as second, raw_client(stack) as third:
            for client, asked, in_flight in ((first, body, 2), (second, one, 3)):
                client.send("POST", "/v1/chat/completions", asked, authorization=f"Bearer {secret}")
                await eventually(lambda in_flight=in_flight: use_of(stack).in_flight == in_flight)  # type: ignore[misc]  # a bound value
            third.send("POST", "/v1/chat/completions", one, authorization=f"Bearer {secret}")
            answer = await third.answer()
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert b"3 in flight" in answer.body
            assert use_of(stack).tokens_per_day > 150
            first.leave()
            second.leave()
            await eventually(lambda: use_of(stack) == Use(0, 0, 0, 0))
        assert await used(stack) == [(2, 0, 0)]


@pytest.mark.parametrize("fails", [False, True])
async def test_tokens_are_settled_by_what_was_generated(
    language: ModelLanguage, writer: Writer, file: KeyFile, *, fails: bool
) -> None:
    ids = writer.ids("Paris is a town in France")
    script: Script = [*([each] for each in ids), BackendLost("gone")]
    whole = script if fails else writer.script("Paris is a town in France")
    async with opened(language, file, whole, Limits(tokens_per_day=10**6)) as (stack, client):
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=500, seed=1, stream=True, stream_options={"include_usage": True}
        )
        told = None
        try:
            async for chunk in stream:
                told = chunk.usage or told
        except Exception:  # noqa: BLE001 - that it fails is not what is tested
            assert fails
        ((_, prompt, completion),) = await used(stack)
        assert completion == (len(ids) if fails else len(ids) + 1)
        assert fails or (told is not None and (told.prompt_tokens, told.completion_tokens) == (prompt, completion))
        assert use_of(stack).tokens_per_day == prompt + completion


async def test_usage_adds_up_to_what_clients_were_told(
    language: ModelLanguage, writer: Writer, file: KeyFile, tmp_path: Path
) -> None:
    """Also for a key without limits, choices, several prompts, and a stop string amid tokens that came together."""
    secret = file.create("alice", INFERENCE, None)
    told = [0, 0]
    async with running(make(language, tmp_path, writer.script("Paris is a town"))) as stack:
        stack.low.script = stack.high.script = [writer.ids("Paris is a town in France"), *writer.script("!")]
        async with connect(stack, secret) as client, AsyncAnthropic(base_url=stack.url, api_key=secret) as anthropic:
            chat = await client.chat.completions.create(model=MODEL, messages=HELLO, n=3, stop=["town"])
            texts = await client.completions.create(model=MODEL, prompt=["Hello", "Good morning"], n=2)
            response = await client.responses.create(model=MODEL, input="Hello")
            message = await anthropic.messages.create(
                model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
            )
        for usage in (chat.usage, texts.usage):
            assert usage is not None
            told = [told[0] + usage.prompt_tokens, told[1] + usage.completion_tokens]
        for other in (response.usage, message.usage):
            assert other is not None
            told = [told[0] + other.input_tokens, told[1] + other.output_tokens]
        assert await used(stack) == [(4, *told)]


async def test_a_relayed_body_may_ask_for_any_number_of_tokens(tmp_path: Path, file: KeyFile) -> None:
    secret = file.create("alice", INFERENCE, None, Limits(in_flight=1, requests_per_minute=9))
    async with relaying(state_folder=tmp_path) as stack, connect(stack, secret) as client:
        usage = b'"usage":{"input_tokens":7,"output_tokens":2}'
        theirs = b"x-ratelimit-limit-requests: 5000\r\n"
        stack.low.answer = saying(sized(b'{"object":"response",%b}' % usage, fields=theirs))
        for _ in range(2):
            asked = client.responses.with_raw_response.create(model=MODEL, input="Hello", max_output_tokens=10**30)
            assert (await asked).headers["x-ratelimit-limit-requests"] == "9"  # and not the engine's own beside it
        assert await used(stack) == [(2, 14, 4)]
        assert use_of(stack) == Use(0, 0, 0, 18)


@pytest.mark.parametrize("reports", [True, False])
async def test_a_relayed_answer_counts_by_its_servers_usage_or_else_by_its_events(
    tmp_path: Path, file: KeyFile, *, reports: bool
) -> None:
    secret = file.create("alice", INFERENCE, None, Limits(tokens_per_day=10**6, priority=0))
    events = [event("a"), event("b"), event(None, "stop"), *([usage_event(7, 2)] if reports else [])]
    async with relaying(state_folder=tmp_path) as stack, connect(stack, secret) as client:
        stack.low.answer = saying(STREAM, chunked(*events, DONE))
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
            max_tokens=4,
            extra_body={"priority": -3},
            extra_headers={"X-Vllm-Priority": "-9"},
        )
        assert len([chunk async for chunk in stream]) == len(events)
        (exchange,) = stack.low.exchanges
        assert orjson.loads(exchange.body)["priority"] == 0
        assert exchange.field(b"x-vllm-priority") == []
        prompt, answer = (7, 2) if reports else (len(exchange.body) // 4, 3)
        assert await used(stack) == [(1, prompt, answer)]
        assert use_of(stack).tokens_per_day == prompt + answer


async def test_a_whole_relayed_answer_counts_too_where_its_usage_is_unknown(tmp_path: Path, file: KeyFile) -> None:
    secret = file.create("alice", INFERENCE, None, Limits(tokens_per_day=10**6))
    early = b'{"usage":{"prompt_tokens":900,"completion_tokens":9},"results":["%b"]}' % (b"x" * 300_000)
    ask = orjson.dumps({"model": MODEL, "messages": HELLO})
    async with relaying(state_folder=tmp_path) as stack:
        async with raw_client(stack) as client:
            stack.low.answer = saying(sized(early))
            client.send("POST", "/v1/chat/completions", ask, authorization=f"Bearer {secret}")
            assert (await client.answer()).body == early
            assert await used(stack) == [(1, len(ask) // 4, len(early) // 4)]
            stack.low.answer = Exchange.left  # which the client does first
            client.send("POST", "/v1/chat/completions", ask, authorization=f"Bearer {secret}")
            await eventually(lambda: len(stack.low.live) == 1)
            client.leave()
        await eventually(lambda: use_of(stack).in_flight == 0)
        stack.low.answer = stack.high.answer = saying(sized(b"", 502))  # whose prompt nobody has read
        async with raw_client(stack) as client:
            client.send("POST", "/v1/chat/completions", ask, authorization=f"Bearer {secret}")
            assert (await client.answer()).status == 503
        assert await used(stack) == [(3, 2 * (len(ask) // 4), len(early) // 4)]


@pytest.mark.parametrize(
    ("fields", "limit", "expected"),
    [
        ({}, 0, {}),
        ({}, 3, {"priority": 3}),
        ({"priority": "9"}, 3, {"priority": 3}),
        ({"priority": 4}, 3, {"priority": 4}),
        ({"service_tier": "priority"}, 0, {}),
        ({"service_tier": "priority", "priority": 2}, 0, {"priority": 2}),
        ({"service_tier": "flex"}, 2, {"service_tier": "flex", "priority": 2}),
    ],
)
def test_a_relayed_body_has_no_priority_beyond_its_keys(
    fields: dict[str, object], limit: int, expected: dict[str, object]
) -> None:
    body, priority = restrain_body(orjson.dumps(fields), fields, Limits(priority=limit), takes_priority=True)
    assert (orjson.loads(body), priority) == (expected, limit)
    other, _ = restrain_body(b"", {}, Limits(priority=limit), takes_priority=False)
    assert other == b""


@pytest.mark.parametrize(
    ("body", "is_plain"),
    [
        (b'{ "model":"m", "priority": 4}', True),
        (b'{"priority":-8,"priority":4}', False),
        (rb'{"\u0070riority":-8,"priority":4}', False),
        (rb'{"priority":-8,"priorit\u0079":4}', False),
        (b'{"n":1,"n":128}', False),
        (rb'{"n":1,"messages":[{"content":"\u00e9 \"n\" n"}]}', True),
    ],
)
def test_a_field_that_the_gateway_reads_stands_once_in_a_relayed_body(body: bytes, *, is_plain: bool) -> None:
    plain = make_plain(body, orjson.loads(body))
    assert (plain == body) is is_plain
    names: list[str] = json.loads(plain, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    assert len(set(names)) == len(names)
    assert json.loads(plain) == json.loads(body)  # the value that Python's parser takes, and so vLLM


async def test_a_server_gets_no_field_twice_and_no_query_from_a_key_with_limits(tmp_path: Path, file: KeyFile) -> None:
    secret = file.create("alice", INFERENCE, None, Limits(priority=0))
    async with relaying(state_folder=tmp_path) as stack, raw_client(stack) as client:
        stack.low.answer = saying(sized(b"{}"))
        body = b'{"model":"%b","priority":-8,"messages":[],"priority":4}' % MODEL.encode()
        client.send("POST", "/v1/chat/completions?priority=-8", body, authorization=f"Bearer {secret}")
        assert (await client.answer()).status == 200
        (exchange,) = stack.low.exchanges
        assert exchange.request_line == b"POST /v1/chat/completions HTTP/1.1"
        assert exchange.body == b'{"model":"%b","priority":4,"messages":[]}' % MODEL.encode()


def test_a_relayed_body_has_one_model_where_its_key_may_not_ask_for_all() -> None:
    body = b'{"model":"mine","Model":"other","n":1}'
    limits = Limits(models=("mine",))
    assert restrain_body(body, orjson.loads(body), limits, takes_priority=True) == (b'{"model":"mine","n":1}', 0)
    deep = b'{"model":"other","model":"mine","x":%b}' % (b"[" * 300 + b"]" * 300)
    with pytest.raises(InvalidRequest, match="too deeply"):
        make_plain(deep, orjson.loads(deep))


@pytest.mark.parametrize(
    ("fields", "longest"),
    [
        ({"max_completion_tokens": 1, "max_tokens": 900}, 900),
        ({"max_tokens": "900"}, 900),
        ({"max_tokens": 9e2}, 900),
        ({"max_tokens": 10**30}, 10**9),
        ({"max_tokens": "inf"}, 10**9),
        ({"max_tokens": "nan"}, None),
        ({"max_tokens": "many", "max_output_tokens": [5]}, None),
        ({"max_tokens": -1}, None),
    ],
)
def test_the_largest_limit_of_a_relayed_body_is_reserved(fields: dict[str, object], longest: int | None) -> None:
    assert read_token_limit(fields) == longest


async def test_a_change_of_limits_takes_effect_at_once(language: ModelLanguage, writer: Writer, file: KeyFile) -> None:
    async with opened(language, file, writer.script("Paris"), Limits(requests_per_minute=1)) as (_, client):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
        with pytest.raises(RateLimitError):
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        file.limit("alice", Limits(requests_per_minute=2))
        await asyncio.sleep(0.15)
        await client.chat.completions.create(model=MODEL, messages=HELLO)
        with pytest.raises(RateLimitError):  # what was counted stays
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        file.rotate("alice", timedelta(hours=1), None)
        assert [key.limits for key in file.read()] == [Limits(requests_per_minute=2)] * 2


async def test_operators_see_keys_with_their_use_and_no_secret(
    language: ModelLanguage, writer: Writer, file: KeyFile
) -> None:
    root = file.create("root", (Scope.OPERATOR,), None)
    async with opened(language, file, writer.script("Paris"), Limits(tokens_per_day=1000)) as (stack, client):
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert answer.usage is not None
        async with raw_client(stack) as operator:
            operator.send("GET", "/admin/keys", authorization=f"Bearer {root}")
            shown = (await operator.answer()).body
        assert client.api_key.encode() not in shown
        assert not any(key.sha256.encode() in shown for key in file.read())
        first, alice = orjson.loads(shown)
        assert (first["name"], first["scopes"], first["limits"], first["use"]) == ("root", ["operator"], None, None)
        assert (alice["state"], alice["limits"]["tokens_per_day"], alice["expires"]) == ("valid", 1000, None)
        total = answer.usage.total_tokens
        assert alice["use"] == {**dict.fromkeys(alice["use"], 0), "tokens_per_day": total, "requests_per_minute": 0}


@pytest.mark.parametrize(("is_keyed", "most"), [(False, 0), (True, 2)])
async def test_without_limits_a_request_takes_two_calls_more_at_most(
    language: ModelLanguage, writer: Writer, file: KeyFile, tmp_path: Path, *, is_keyed: bool, most: int
) -> None:
    secret = file.create("alice", INFERENCE, None) if is_keyed else "none"
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        place = Path(frame.f_code.co_filename).name
        is_ours = place in {"limits.py", "meter.py", "usage.py", "restraint.py"}
        if event == "call" and (is_ours or (place, frame.f_code.co_name) == ("token_lane.py", "count")):
            calls.append(f"{place} {frame.f_code.co_name}")

    async with running(make(language, tmp_path, writer.script("Paris"))) as stack, connect(stack, secret) as client:
        await client.chat.completions.create(model=MODEL, messages=HELLO)
        await used(stack)  # or the beat would write it meanwhile
        sys.setprofile(note)
        try:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        finally:
            sys.setprofile(None)
    seen = [call for call in calls if call not in {"meter.py sweep", "usage.py write"}]
    hidden = is_keyed and not inspect.isfunction(UsageLog.count)  # compiled code makes no call that can be seen
    assert len(seen) == most - hidden
