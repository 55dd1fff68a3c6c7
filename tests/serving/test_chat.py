"""Answers of the token lane over a real socket: chats, completions, the models."""

import asyncio
import time

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from gateway.core import FinishReason, GenerateRequest
from gateway.language import ModelLanguage
from gateway.metrics import Metrics, Observation
from gateway.serving.endpoints import INLINE_BODY_BYTES
from tests.fakes.backend import Pause, Script
from tests.openai.streams import fold, read_events
from tests.serving.stack import HELLO, MODEL, RawClient, Stack, Writer, raw_client

TEXT = "Paris, 巴黎, is nice 🙂."


async def test_a_plain_answer(client: AsyncOpenAI, stack: Stack, writer: Writer, language: ModelLanguage) -> None:
    stack.low.script = writer.script(TEXT)
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
    stack.low.script = writer.script(TEXT)
    options = {"include_usage": True}
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options)  # type: ignore[call-overload]  # a TypedDict
    first, *texts, last, usage = [chunk async for chunk in stream]
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content for chunk in texts) == TEXT
    assert last.choices[0].finish_reason == "stop"
    assert (usage.choices, usage.usage.completion_tokens) == ([], len(writer.ids(TEXT)) + 1)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in (first, *texts, last, usage)}) == 1


async def test_a_streamed_completion(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script(" is nice.", FinishReason.LENGTH)
    stream = await client.completions.create(model=MODEL, prompt="Paris", stream=True)
    *texts, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in texts) == " is nice."
    assert (last.choices[0].text, last.choices[0].finish_reason) == ("", "length")
    assert list(stack.low.calls[0].request.prompt.token_ids) == writer.ids("Paris")


async def test_the_models_are_listed(client: AsyncOpenAI, language: ModelLanguage) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.object, model.owned_by) for model in models] == [(MODEL, "model", "crossover")]
    assert models[0] == await client.models.retrieve(MODEL)
    assert (models[0].model_extra or {})["max_model_len"] == language.context_length
    with pytest.raises(NotFoundError) as caught:
        await client.models.retrieve("huge")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_a_stop_string_over_token_borders_ends_the_answer_and_the_engine_call(
    stack: Stack, writer: Writer, stream: bool
) -> None:
    stack.low.script = [*writer.script("Paris is nice. Berlin", Pause())]  # the engine would go on for ever
    async with raw_client(stack) as client:
        client.ask(stream=stream, stop=["e. B"])
        assert await read_text(client) == "Paris is nic"
    await stack.settle()
    assert stack.low.calls[0].was_cancelled
    assert stack.counted("low", "stop")


async def test_an_answer_is_counted_before_its_place_is_free(
    stack: Stack, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees that nothing is in flight finds every answer counted."""
    in_flight: list[int] = []
    record = Metrics.record

    def note_and_record(metrics: Metrics, seen: Observation, outcome: str) -> None:
        in_flight.append(stack.in_flight["low"])
        record(metrics, seen, outcome)

    monkeypatch.setattr(Metrics, "record", note_and_record)
    stack.low.script = writer.script("Paris is nice.", Pause())  # the gateway ends it, at the stop string
    async with raw_client(stack) as client:
        client.ask(stop="nice")
        assert (await client.answer()).status == 200
    assert in_flight == [1]


async def read_text(client: RawClient) -> str:
    """Of the next answer, whole or streamed."""
    answer = await client.answer()
    is_stream = answer.headers["content-type"].startswith("text/event-stream")
    whole = fold(read_events(answer.body), is_chat=True) if is_stream else orjson.loads(answer.body)
    text: str = whole["choices"][0]["message"]["content"]
    return text


async def test_the_first_token_is_not_held_back_for_the_second(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=True)
        head = await client.until(b"\r\n\r\n")
        assert b"200 OK" in head
        frames = await client.until(b'"content":"Paris"')
        assert b'"role":"assistant"' in frames


async def test_a_connection_is_used_again(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("Paris")
    async with raw_client(stack) as client:
        for stream in (False, True, False, True):
            client.ask(stream=stream)
            assert await read_text(client) == "Paris"


async def test_many_streams_at_once_are_not_mixed_up(stack: Stack, writer: Writer) -> None:
    def script(request: GenerateRequest) -> Script:
        return writer.script(str(request.params.max_tokens))

    async def ask(number: int) -> None:
        async with raw_client(stack) as client:
            client.ask(stream=bool(number % 2), max_tokens=number)
            assert await read_text(client) == str(number)

    stack.low.script = stack.high.script = script
    async with asyncio.TaskGroup() as tasks:
        for number in range(100, 200):
            tasks.create_task(ask(number))
    assert stack.low.calls
    assert stack.high.calls


async def test_a_body_that_is_parsed_beside_the_event_loop_is_answered_alike(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = writer.script("Paris")
    label = {"label": "x" * (INLINE_BODY_BYTES + 1)}
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, metadata=label)
    assert answer.choices[0].message.content == "Paris"
    with pytest.raises(BadRequestError, match="temperature"):
        await client.chat.completions.create(model=MODEL, messages=HELLO, metadata=label, temperature=5)
