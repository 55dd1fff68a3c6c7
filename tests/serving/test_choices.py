"""Several choices of one request: `n`, and lists of prompts, through the official client over a real socket."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI

from gateway.core import FinishReason, GenerateRequest
from gateway.errors import BackendError, BackendUnavailable
from tests.fakes.backend import Pause, Script
from tests.serving.stack import HELLO, MODEL, Stack, Writer, eventually

TEXTS = ("Paris is nice.", "Berlin too.", "So is Rome, they say.")


def speak_in_turn(stack: Stack, writer: Writer, *texts: str) -> None:
    """Each generation on `low` is the next of `texts`."""
    scripts = iter([writer.script(text) for text in texts])
    stack.low.script = lambda _: next(scripts)


async def test_choices_are_in_order_and_their_tokens_counted_each_prompt_once(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    speak_in_turn(stack, writer, *TEXTS, "Oslo")
    answer = await client.completions.create(model=MODEL, prompt=[[70, 70], [5, 6, 7]], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate((*TEXTS, "Oslo")))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2 + 3
    assert answer.usage.completion_tokens == sum(len(writer.ids(text)) + 1 for text in (*TEXTS, "Oslo"))


async def test_streamed_choices_interleave_and_the_last_one_ends_the_stream(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    speak_in_turn(stack, writer, *TEXTS)
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    texts: defaultdict[int, str] = defaultdict(str)
    ends, order = {}, []
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            order.append(choice.index)
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == dict(enumerate(TEXTS))
    assert ends == dict.fromkeys(range(3), "stop")
    assert len([*groupby(order)]) > 3  # as they are made, not one after the other
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_all_choices_are_in_flight_on_one_backend_until_the_last_one_ends(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.chat.completions.create(model=MODEL, messages=HELLO, n=4))
        await eventually(lambda: len(stack.low.live) == 4)
        assert stack.in_flight == {"low": 4, "high": 0}
        for call in stack.low.calls[1:]:
            call.steps = [FinishReason.STOP]
            call.go_on()
        await eventually(lambda: len(stack.low.live) == 1)
        assert stack.in_flight == {"low": 4, "high": 0}
        stack.low.calls[0].steps = [FinishReason.STOP]
        stack.low.calls[0].go_on()
    await stack.settle()


async def test_a_choice_that_met_its_stop_string_leaves_its_engine_while_others_go_on(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    scripts: Iterator[Script] = iter([[*writer.script("Paris. And"), Pause()], [writer.ids("Berlin"), Pause()]])
    stack.low.script = lambda _: next(scripts)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.chat.completions.create(model=MODEL, messages=HELLO, n=2, stop="."))
        await eventually(lambda: len(stack.low.live) == 1)
        assert stack.low.calls[0].was_cancelled
        stack.low.calls[1].steps = [FinishReason.LENGTH]
        stack.low.calls[1].go_on()
    found = [(choice.message.content, choice.finish_reason) for choice in asking.result().choices]
    assert found == [("Paris", "stop"), ("Berlin", "length")]


async def test_one_choice_that_fails_ends_all_of_them(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    scripts: list[Script] = [[writer.ids("Paris"), Pause()], [writer.ids("Berlin"), BackendError("it died")]]
    turns = iter(scripts)
    stack.low.script, stack.high.ready = lambda _: next(turns), False
    await eventually(lambda: not stack.is_ready("high"))
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, n=2)
    assert caught.value.status_code == 502
    await stack.settle()
    assert stack.low.calls[0].was_cancelled


async def test_choices_that_may_not_move_start_again_together_before_anything_is_answered(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    def refuse_second(request: GenerateRequest) -> Script:
        is_first = request.request_id == stack.low.calls[0].request.request_id if stack.low.calls else True
        return writer.script("never shown") if is_first else [BackendUnavailable("low is down")]

    stack.low.script = refuse_second
    stack.high.script = writer.script("Rome")
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, n=2, seed=1)
    assert [choice.message.content for choice in answer.choices] == ["Rome", "Rome"]
    await stack.settle()


async def test_a_stream_whose_first_choice_has_begun_and_may_not_move_ends_with_the_error(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    scripts: list[Script] = [[writer.ids("Paris"), Pause()], [Pause(0.1), BackendUnavailable("low is down")]]
    turns = iter(scripts)
    stack.low.script, stack.high.script = lambda _: next(turns), writer.script("Rome")
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, n=2, seed=1, stream=True)
    with pytest.raises(APIError, match="low is down"):
        _ = [chunk async for chunk in stream]
    assert not stack.high.calls
    await stack.settle()


async def test_a_client_that_leaves_frees_every_choice(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, n=3, stream=True)
    await anext(stream)
    await stream.close()
    await stack.settle()
    assert all(call.was_cancelled for call in stack.low.calls)
