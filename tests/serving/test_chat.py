"""POST /v1/chat/completions through the official client, over a real socket."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.chat import ChatCompletionChunk

from gateway.core import FinishReason, GenerateRequest
from gateway.language import ModelLanguage
from gateway.routing import Lease
from gateway.serving.endpoints import INLINE_BODY_BYTES
from tests.fakes.backend import Pause, Script
from tests.serving.stack import HELLO, MODEL, Stack, Writer, raw_client

TEXT = "Paris, 巴黎, is nice 🙂."


async def stream_chat(client: AsyncOpenAI, **fields: object) -> list[ChatCompletionChunk]:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, extra_body=fields)
    return [chunk async for chunk in answer]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def finishes(chunks: list[ChatCompletionChunk]) -> list[str | None]:
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]


async def test_a_plain_answer(client: AsyncOpenAI, stack: Stack, writer: Writer, language: ModelLanguage) -> None:
    stack.low.script = writer.says(TEXT)
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.created == pytest.approx(time.time(), abs=60)
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", TEXT)
    assert answer.choices[0].finish_reason == "stop"
    prompt, completion = len(language.render_chat([{"role": "user", "content": "Hello"}])), len(writer.ids(TEXT)) + 1
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, completion)
    assert answer.usage.total_tokens == prompt + completion


async def test_a_streamed_answer(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says(TEXT)
    chunks = await stream_chat(client)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert text_of(chunks) == TEXT
    assert finishes(chunks) == ["stop"]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_streamed_usage_comes_last_and_counts_ids(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says(TEXT)
    chunks = await stream_chat(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(writer.ids(TEXT)) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_the_token_limit_is_reported_as_length(
    client: AsyncOpenAI, stack: Stack, writer: Writer, stream: bool
) -> None:
    stack.low.script = writer.says("Paris is", FinishReason.LENGTH)
    if stream:
        reasons = finishes(await stream_chat(client, max_tokens=5))
    else:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
        reasons = [choice.finish_reason for choice in answer.choices]
    assert reasons == ["length"]
    assert stack.low.calls[0].request.params.max_tokens == 5


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_a_stop_string_over_token_borders_ends_the_answer_and_the_engine_call(
    client: AsyncOpenAI, stack: Stack, writer: Writer, stream: bool
) -> None:
    stack.low.script = [*writer.says("Paris is nice. Berlin", Pause())]  # the engine would go on for ever
    if stream:
        chunks = await stream_chat(client, stop=["e. B"])
        text, reasons = text_of(chunks), finishes(chunks)
    else:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, stop=["e. B"])
        text, reasons = answer.choices[0].message.content or "", [answer.choices[0].finish_reason]
    assert (text, reasons) == ("Paris is nic", ["stop"])
    await stack.settle()
    assert stack.low.calls[0].was_cancelled
    metrics = stack.app.metrics.render().decode()
    assert f'crossover_requests_total{{backend="low",model="{MODEL}",outcome="stop"}} 1.0' in metrics


async def test_an_answer_is_counted_before_its_place_is_free(
    stack: Stack, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees that nothing is in flight finds every answer counted."""
    was_counted: list[bool] = []
    close = Lease.close

    def look_and_close(lease: Lease) -> None:
        was_counted.append('outcome="stop"' in stack.app.metrics.render().decode())
        close(lease)

    monkeypatch.setattr(Lease, "close", look_and_close)
    stack.low.script = writer.says("Paris is nice.", Pause())  # the gateway ends it, at the stop string
    async with raw_client(stack) as client:
        client.ask(stop="nice")
        assert (await client.answer()).status == 200
    assert was_counted == [True]


async def test_streamed_and_folded_answers_say_the_same(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says(TEXT)
    chunks = await stream_chat(client, stream_options={"include_usage": True}, stop=["is nice", "zzz"])
    folded = await client.chat.completions.create(model=MODEL, messages=HELLO, stop=["is nice", "zzz"])
    assert text_of(chunks) == folded.choices[0].message.content == "Paris, 巴黎, "
    assert finishes(chunks) == [folded.choices[0].finish_reason]
    assert chunks[-1].usage == folded.usage


async def test_the_first_token_is_not_held_back_for_the_second(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=True)
        head = await client.until(b"\r\n\r\n")
        assert b"200 OK" in head
        frames = await client.until(b'"content":"Paris"')
        assert b'"role":"assistant"' in frames


async def test_the_bytes_of_a_stream(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says("Paris")
    async with raw_client(stack) as client:
        client.ask(stream=True)
        deltas = deltas_of((await client.answer()).body)
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == "Paris"
    assert deltas[-1] == {}


def deltas_of(body: bytes) -> list[dict[str, Any]]:  # Any: JSON
    *events, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [orjson.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] for event in events]


async def test_a_connection_is_used_again(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says("Paris")
    async with raw_client(stack) as client:
        for stream in (False, True, False, True):
            client.ask(stream=stream)
            body = (await client.answer()).body
            if stream:
                assert "".join(delta.get("content", "") for delta in deltas_of(body)) == "Paris"
            else:
                assert orjson.loads(body)["choices"][0]["message"]["content"] == "Paris"


async def test_requests_sent_ahead_on_one_connection_are_answered_in_order(stack: Stack, writer: Writer) -> None:
    stack.low.script = say_max_tokens(writer)
    async with raw_client(stack) as client:
        for n in (11, 12, 13):
            client.ask(max_tokens=n)
        answers = [orjson.loads((await client.answer()).body) for _ in range(3)]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["11", "12", "13"]


def say_max_tokens(writer: Writer) -> Callable[[GenerateRequest], Script]:
    """Every answer tells which request it belongs to."""

    def script(request: GenerateRequest) -> Script:
        return writer.says(str(request.params.max_tokens))

    return script


async def test_many_streams_at_once_are_not_mixed_up(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = stack.high.script = say_max_tokens(writer)

    async def ask(n: int) -> tuple[int, str]:
        if n % 2:
            return n, text_of(await stream_chat(client, max_tokens=n))
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=n)
        return n, answer.choices[0].message.content or ""

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(n)) for n in range(100, 200)]
    assert all(task.result()[1] == str(task.result()[0]) for task in asked)
    assert stack.low.calls
    assert stack.high.calls


async def test_a_body_that_is_parsed_beside_the_event_loop_is_answered_alike(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = writer.says("Paris")
    label = {"label": "x" * (INLINE_BODY_BYTES + 1)}
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, metadata=label)
    assert answer.choices[0].message.content == "Paris"
    with pytest.raises(BadRequestError, match="temperature"):
        await client.chat.completions.create(model=MODEL, messages=HELLO, metadata=label, temperature=5)


async def test_a_body_may_come_in_pieces(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says("Paris")
    body = orjson.dumps({"model": MODEL, "messages": HELLO})
    async with raw_client(stack) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 20):
            client.writer.write(body[start : start + 20])
            await asyncio.sleep(0.005)
        assert (await client.answer()).status == 200
