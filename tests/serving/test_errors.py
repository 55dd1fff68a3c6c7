"""How failures reach a client: a status before the first frame, an event after it. Bad input reaches no engine."""

from typing import TypeAlias

import orjson
import pytest
from openai import APIStatusError, AsyncOpenAI

from gateway.errors import BackendError, GatewayError
from gateway.language import ModelLanguage
from tests.openai.streams import read_events
from tests.serving.stack import HELLO, LIMITS, MODEL, Stack, Writer, eventually, fault, make_stack, raw_client, running

DIED = BackendError("the engine died")
CHAT = "/v1/chat/completions"


async def be_alone(stack: Stack) -> None:
    stack.high.ready = False
    await eventually(lambda: not stack.is_ready("high"))


@pytest.mark.parametrize(
    ("error", "text", "stream"),
    [(DIED, "", False), (DIED, "", True), (DIED, "Pa", False)],
    ids=["folded", "streamed", "folded, after two tokens"],
)
async def test_an_error_before_the_first_frame_is_a_status(
    client: AsyncOpenAI, stack: Stack, writer: Writer, *, error: GatewayError, text: str, stream: bool
) -> None:
    """A folded answer has no frame before its end. Another backend would be tried first."""
    await be_alone(stack)
    stack.low.script = writer.script(text, error)
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, stream=stream)
    assert caught.value.status_code == error.status
    assert caught.value.body == {"message": error.message, "type": error.type, "param": None, "code": error.code}
    headers = caught.value.response.headers
    assert (headers["x-crossover-backend"], headers["content-type"]) == ("low", "application/json")
    assert headers["x-crossover-reason"].startswith("threshold ")
    assert headers["server-timing"].startswith("gateway;dur=")
    await stack.settle()
    assert not stack.high.calls


async def test_an_error_after_two_tokens_of_a_stream_is_its_last_event(stack: Stack, writer: Writer) -> None:
    await be_alone(stack)
    stack.low.script = writer.script("Pa", DIED)
    async with raw_client(stack) as client:
        for _ in range(2):  # the connection is good for another request
            client.ask(stream=True)
            answer = await client.answer()  # the body is whole: its last chunk came
            *chunks, last = read_events(answer.body)
            assert answer.status == 200
            assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "Pa"
            assert last == {"error": {"message": DIED.message, "type": DIED.type, "param": None, "code": DIED.code}}
            assert b"[DONE]" not in answer.body
    assert not stack.high.calls


@pytest.mark.parametrize("user", ["u", "u" * 20_000], ids=["at once", "in a task"])
async def test_a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has(
    client: AsyncOpenAI, stack: Stack, caplog: pytest.LogCaptureFixture, user: str
) -> None:
    stack.low.script = fault
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, user=user)
    assert (caught.value.status_code, caught.value.code) == (500, "internal_error")
    assert "secret" not in caught.value.message
    assert caught.value.response.headers["x-request-id"] in caplog.text
    assert "secret" in caplog.text
    await stack.settle()


Refusal: TypeAlias = tuple[int, str | None, str]
BAD_BODIES: list[tuple[bytes | dict[str, object], Refusal]] = [
    (b'{"model": "tiny", "messages": [}', (400, None, "invalid_value")),
    (b"", (400, None, "invalid_value")),
    ({}, (400, "model", "invalid_value")),
    ({"model": "huge"}, (404, "model", "model_not_found")),
    ({"max_tokens": -1, "stream": True}, (400, "max_tokens", "invalid_value")),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, (400, "messages", "context_length_exceeded")),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        (400, "messages.0.content.0.type", "invalid_value"),
    ),
    ({"structured_outputs": {"choice": ["." * 40_000]}}, (400, "structured_outputs", "invalid_value")),
    ({"messages": [{"role": "user", "content": "x" * LIMITS.max_body_bytes}]}, (413, None, "request_too_large")),
]


@pytest.mark.parametrize(("body", "refusal"), BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_bad_input_is_named_and_reaches_no_engine(
    stack: Stack, body: bytes | dict[str, object], refusal: Refusal
) -> None:
    good = {"model": MODEL, "messages": HELLO}
    raw = body if isinstance(body, bytes) else orjson.dumps(good | body if body else {"messages": HELLO})
    async with raw_client(stack) as client:
        client.send("POST", CHAT, raw)
        answer = await client.answer()
    error = orjson.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == refusal
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert answer.headers["x-request-id"]
    assert "x-crossover-backend" not in answer.headers
    assert not stack.requests
    assert f'crossover_refused_total{{code="{refusal[2]}"}} 1.0' in stack.metrics


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?a=1"], ids=["read here", "parsed"])
async def test_a_body_may_be_as_large_as_it_says(stack: Stack, writer: Writer, path: str) -> None:
    stack.low.script = writer.script("Paris")
    body = orjson.dumps({"model": MODEL, "messages": HELLO}).ljust(LIMITS.max_body_bytes)
    async with raw_client(stack) as client:
        for sent, status in ((body, 200), (body + b" ", 413)):
            client.send("POST", path, sent)
            assert (await client.answer()).status == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("PUT", "/v1/models/tiny", 405),
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/v1/embeddings", 405),
        ("GET", "/v1/", 404),
        ("GET", "/v1/chat/completions/abc", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/", 404),
    ],
)
async def test_a_wrong_path_or_method_gets_openais_error_shape(
    stack: Stack, method: str, path: str, status: int
) -> None:
    async with raw_client(stack) as client:
        client.send(method, path)
        answer = await client.answer()
    assert answer.status == status
    error = orjson.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    unknown = "unknown_url" if path.startswith("/v1/") else "not_found"  # the operator's own routes
    assert error["code"] == ("method_not_allowed" if status == 405 else unknown)
    allowed = "GET" if path.startswith("/v1/models") else "POST"
    assert answer.headers.get("allow") == (allowed if status == 405 else None)


async def test_an_endpoint_that_no_engine_has_names_what_to_configure(stack: Stack) -> None:
    async with raw_client(stack) as client:
        client.send("POST", "/v1/audio/speech", b"{}")
        error = orjson.loads((await client.answer()).body)["error"]
    assert error["message"].startswith("Unknown request URL: POST /v1/audio/speech. ")
    assert "'relay_paths'" in error["message"]


@pytest.mark.parametrize(("unknown", "status"), [("refuse", 400), ("ignore", 200)])
async def test_the_operator_decides_about_unknown_fields(
    language: ModelLanguage, writer: Writer, unknown: str, status: int
) -> None:
    async with running(make_stack(language, unknown_fields=unknown)) as stack, raw_client(stack) as client:
        stack.low.script = writer.script("Paris")
        client.ask(frobnicate={"a": 1})
        assert (await client.answer()).status == status
        client.send("POST", "/tokenize", orjson.dumps({"model": MODEL, "prompt": "Hi", "frobnicate": 1}))
        assert (await client.answer()).status == status


async def test_the_content_type_of_a_request_does_not_matter(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("Paris")
    body = orjson.dumps({"model": MODEL, "messages": HELLO})
    async with raw_client(stack) as client:
        for headers in ({}, {"content_type": "text/plain"}, {"content_type": "application/x-www-form-urlencoded"}):
            client.send("POST", CHAT, body, **headers)
            assert (await client.answer()).status == 200
