"""Browsers' pages of other origins: which may call the gateway, and what they may read of its answers."""

import orjson
import pytest

from gateway.language import ModelLanguage
from tests.serving.stack import HELLO, MODEL, Stack, Writer, make_stack, raw_client, running

PAGE, OTHER = "https://chat.example.com", "https://a.example"
CHAT, MODELS = "/v1/chat/completions", "/v1/models"
ALLOW = "access-control-allow-origin"
PREFLIGHT = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-foo"}


def serve(language: ModelLanguage, writer: Writer, *origins: str) -> Stack:
    stack = make_stack(language, cors_origins=frozenset(origins))
    stack.low.script = writer.script("Paris")
    return stack


@pytest.mark.parametrize(
    ("origins", "origin", "allowed", "status"),
    [
        ([PAGE], PAGE, PAGE, 200),
        (["*"], OTHER, "*", 200),
        ([PAGE], None, None, 200),
        ([PAGE], OTHER, None, 403),
        ([], PAGE, None, 403),
    ],
)
async def test_every_answer_may_be_read_by_pages_of_the_configured_origins_and_others_get_none(
    language: ModelLanguage,
    writer: Writer,
    *,
    origins: list[str],
    origin: str | None,
    allowed: str | None,
    status: int,
) -> None:
    fields = {} if origin is None else {"origin": origin}
    async with running(serve(language, writer, *origins)) as stack, raw_client(stack) as client:
        answers = []
        for stream in (False, True):
            body = orjson.dumps({"model": MODEL, "messages": HELLO, "stream": stream})
            client.send("POST", CHAT, body, **fields)
            answers.append(await client.answer())
        client.send("GET", MODELS, b"", **fields)
        answers.append(await client.answer())
        client.send("POST", CHAT, b"{}", **fields)
        answers.append(await client.answer())
    assert [answer.status for answer in answers] == ([200, 200, 200, 400] if status == 200 else [status] * 4)
    for answer in answers:
        assert answer.headers.get(ALLOW) == allowed
        assert ("x-request-id" in answer.headers.get("access-control-expose-headers", "")) == (allowed is not None)
        # A cache may give an answer for one origin to no other.
        assert ("vary" in answer.headers) == (PAGE in origins and origin is not None)


async def test_a_preflight_request_is_answered_for_the_configured_origins_alone(
    language: ModelLanguage, writer: Writer
) -> None:
    async with running(serve(language, writer, PAGE)) as stack, raw_client(stack) as client:
        client.send("OPTIONS", CHAT, b"", origin=PAGE, **PREFLIGHT)
        allowed = await client.answer()
        client.send("OPTIONS", CHAT, b"", origin=OTHER, **PREFLIGHT)
        refused = await client.answer()
    assert (allowed.status, allowed.headers[ALLOW], allowed.body) == (200, PAGE, b"")
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert allowed.headers["access-control-allow-headers"] == PREFLIGHT["access_control_request_headers"]
    assert (refused.status, refused.headers.get(ALLOW)) == (403, None)


async def test_without_origins_nothing_of_it_is_there(stack: Stack) -> None:
    async with raw_client(stack) as client:
        client.send("OPTIONS", CHAT, b"", origin=PAGE, **PREFLIGHT)
        answer = await client.answer()
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
