"""The check of generated requests fails for an answer with one thing wrong."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.fuzz.exchange import Received, Sent, check

ID = "0" * 32
HEADERS = {"x-request-id": ID, "content-type": "application/json"}
CHAT = "/v1/chat/completions"
Json = dict[str, Any]  # Any: JSON
USAGE = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
HEAD = {"id": f"chatcmpl-{ID}", "created": 1_800_000_000, "model": "m", "system_fingerprint": None}
MESSAGE = {"role": "assistant", "content": "Hi", "refusal": None}
WHOLE: Json = HEAD | {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}],
    "usage": USAGE,
}
FAULT: Json = {"message": "No.", "type": "invalid_request_error", "param": None, "code": "invalid_value"}


def sent(**fields: object) -> Sent:
    return Sent("POST", CHAT, orjson.dumps({"model": "m", "messages": [], **fields}))


def whole(**changes: object) -> Received:
    return Received(200, HEADERS, orjson.dumps(WHOLE | changes))


def choice(**changes: object) -> Received:
    return whole(choices=[WHOLE["choices"][0] | changes])


def chunk(delta: Json, reason: str | None = None, **changes: object) -> Json:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
    return HEAD | {"object": "chat.completion.chunk", "choices": choices} | changes


OPENING = chunk({"role": "assistant", "content": "", "refusal": None})
TEXT = chunk({"content": "Hi"})
LAST = chunk({}, "stop")


def streamed(*chunks: Json, end: bytes = b"data: [DONE]\n\n") -> Received:
    body = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + end
    return Received(200, HEADERS | {"content-type": "text/event-stream; charset=utf-8"}, body)


def refused(status: int = 400, headers: Mapping[str, str] = HEADERS, **changes: object) -> Received:
    return Received(status, headers, orjson.dumps({"error": FAULT | changes}))


SCORE: Json = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
SCORES: Json = {"content": [SCORE], "refusal": None}
STREAM = sent(stream=True)
COUNTED = sent(stream=True, stream_options={"include_usage": True})
IMAGE = sent(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
ENGINES_OWN = Received(404, HEADERS | {"x-crossover-backend": "vllm"}, b'{"detail":"Not Found"}')
NULL = {"usage": None}


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (sent(), whole()),
        (STREAM, streamed(OPENING, TEXT, LAST)),
        (COUNTED, streamed(OPENING | NULL, LAST | NULL, chunk({}, choices=[], usage=USAGE))),
        (sent(n=2), whole(choices=[WHOLE["choices"][0], WHOLE["choices"][0] | {"index": 1}])),
        (sent(return_token_ids=True), choice(token_ids=[1])),
        (sent(logprobs=True), choice(logprobs=SCORES)),
        (IMAGE, ENGINES_OWN),
    ],
)
def test_an_answer_as_it_should_be_passes(asked: Sent, answer: Received) -> None:
    check(asked, answer)


@pytest.mark.parametrize(
    ("asked", "answer", "complaint"),
    [
        (sent(), whole(service_tier=None), "service_tier"),
        (sent(), whole(usage=None), "usage"),
        (sent(), whole(usage=USAGE | {"total_tokens": 4}), "not the sum"),
        (sent(), whole(model="other"), "another model"),
        (sent(), whole(choices=[]), "at least 1"),
        (sent(n=2), whole(), "other choices than asked"),
        (sent(), choice(finish_reason=None), "finish_reason"),
        (sent(), choice(token_ids=[1]), "ids nobody asked for"),
        (sent(), choice(logprobs=SCORES), "log-probabilities nobody asked for"),
        (sent(logprobs=True), choice(logprobs=SCORES | {"content": [SCORE | {"bytes": [256]}]}), "bytes"),
        (sent(), Received(200, HEADERS, orjson.dumps(WHOLE) + b"\n{}"), "no ChatCompletion"),
        (sent(), Received(200, HEADERS, b'{"id": NaN}'), "NaN"),
        (sent(), Received(200, HEADERS | {"content-type": "text/plain"}, orjson.dumps(WHOLE)), "content of type"),
        (sent(), Received(200, {}, orjson.dumps(WHOLE)), "x-request-id"),
        (STREAM, whole(), "one object for a stream"),
        (sent(), streamed(OPENING, LAST), "nobody asked for"),
        (STREAM, streamed(OPENING, TEXT, LAST, end=b""), "DONE"),
        (STREAM, streamed(OPENING, TEXT, LAST, end=b"data: [DONE]\n"), "does not end"),
        (STREAM, streamed(TEXT, LAST), "a role"),
        (STREAM, streamed(OPENING, TEXT), "does not finish"),
        (STREAM, streamed(OPENING, LAST, TEXT, LAST), "after its end"),
        (STREAM, streamed(OPENING, chunk({"content": "Hi"}, "stop")), "holds more"),
        (STREAM, streamed(OPENING, chunk({"content": ""}), LAST), "content"),
        (STREAM, streamed(OPENING, LAST | {"id": f"chatcmpl-{'1' * 32}"}), "several answers"),
        (STREAM, streamed(OPENING, LAST | NULL), "usage"),
        (COUNTED, streamed(OPENING, LAST), "usage"),
        (sent(stream=True, n=2), streamed(OPENING, LAST), "choices [0]"),
        (sent(), ENGINES_OWN, "no Error"),
        (IMAGE, Received(404, HEADERS, ENGINES_OWN.body), "no Error"),
        (sent(), refused(500, code="internal_error"), "status of 500"),
        (sent(), refused(404), "code invalid_value with 404"),
        (sent(), refused(type="server_error"), "type"),
        (sent(), refused(message="x" * 2000), "message"),
        (sent(), refused(detail="x"), "detail"),
    ],
)
def test_an_answer_with_one_thing_wrong_is_found(asked: Sent, answer: Received, complaint: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check(asked, answer)
    assert complaint in str(caught.value)
