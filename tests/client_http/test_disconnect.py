"""Clients that leave, in every phase, and clients that stop reading: the engine call ends and the slot is freed."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from gateway.core import FinishReason, GenerateRequest
from gateway.language import ModelLanguage
from tests.fakes.backend import Pause, Script, Step
from tests.serving.stack import HELLO, LIMITS, MODEL, Stack, Writer, eventually, make_stack, raw_client, running


async def expect_cancelled(stack: Stack) -> None:
    await stack.settle(within_s=5)
    assert [call.was_cancelled for call in stack.low.calls] == [True]
    assert stack.in_flight == {"low": 0, "high": 0}
    assert stack.counted("low", "cancelled")


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_slot_is_freed_when_client_leaves_before_first_token(stack: Stack, stream: bool) -> None:
    stack.low.script = [Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=stream)
        await eventually(lambda: len(stack.low.calls) == 1)
        assert stack.in_flight == {"low": 1, "high": 0}
        client.leave()
        await expect_cancelled(stack)


async def test_slot_is_freed_when_client_leaves_during_a_folded_answer(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with raw_client(stack) as client:
        client.ask()
        await eventually(lambda: stack.low.calls != [] and len(stack.low.calls[0].steps) == 0)
        client.leave()
        await expect_cancelled(stack)


async def test_slot_is_freed_when_the_official_client_closes_its_stream(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True) as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    await expect_cancelled(stack)


def number_of(request: GenerateRequest) -> int:
    """Which of the two hundred it is, by its max_tokens."""
    return request.params.max_tokens - 100


async def test_forty_of_two_hundred_streams_leave_and_nothing_is_left_behind(stack: Stack, writer: Writer) -> None:
    """Twenty leave before the first token, twenty mid-stream; the others get every token."""

    def script(request: GenerateRequest) -> Script:
        n = number_of(request)
        first: Script = [] if n < 20 else [writer.ids("Paris")]
        return [*first, Pause()] if n < 40 else [*first, Pause(0.05), *writer.script(f" {n} done")]

    async def ask(n: int) -> None:
        async with raw_client(stack) as client:
            client.ask(stream=True, max_tokens=100 + n)
            if n < 20:
                await eventually(lambda: n in map(number_of, stack.requests))
                client.leave()
            elif n < 40:
                await client.until(b"Paris")
                client.leave()
            else:
                body = (await client.answer()).body
                assert "".join(re.findall(r'"content":"([^"]*)"', body.decode())) == f"Paris {n} done"
                assert body.endswith(b"data: [DONE]\n\n")

    stack.low.script = stack.high.script = script
    async with asyncio.TaskGroup() as tasks:
        for n in range(200):
            tasks.create_task(ask(n))
    await stack.settle(within_s=5)
    assert sorted(map(number_of, stack.requests)) == list(range(200))
    assert sum(call.was_cancelled for call in stack.low.calls + stack.high.calls) == 40


BUFFER = 1 << 16  # at both ends, where kernels would let several megabytes lie
LONG = "additionalProperties"  # in one token, so that megabytes are few of them
PIECES, TOKENS = 600, 250


@pytest.fixture
async def narrow(language: ModelLanguage) -> AsyncIterator[Stack]:
    """A stack whose connections hold little."""
    async with running(make_stack(language), BUFFER) as stack:
        yield stack


def say_much(writer: Writer, *then: Step) -> Script:
    """PIECES frames of 5 kB, far more than sockets hold."""
    (token_id,) = writer.ids(LONG)
    return [*[[token_id] * TOKENS] * PIECES, *then]


async def test_a_client_that_stops_reading_is_cut_off_in_time(narrow: Stack, writer: Writer) -> None:
    narrow.low.script = say_much(writer, Pause())
    async with raw_client(narrow, BUFFER) as client:
        client.stop_reading()
        client.ask(stream=True)
        await eventually(lambda: narrow.in_flight["low"] == 1)
        await narrow.settle(within_s=30)
        client.go_on_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
    assert narrow.counted("low", "cancelled")


@pytest.mark.alone  # it must read on at its pace, however slow: who stands still for a second is cut off
async def test_a_client_that_reads_slowly_gets_everything(narrow: Stack, writer: Writer) -> None:
    narrow.low.script = say_much(writer, FinishReason.LENGTH)
    async with raw_client(narrow, BUFFER) as client:
        client.ask(stream=True)
        body = bytearray()
        for _ in range(60):  # three times as long as a client may take nothing; 2 MB of 3
            await asyncio.sleep(LIMITS.client_write_timeout_s / 20)
            body += await client.reader.read(BUFFER // 2)
        while not body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            piece = await client.reader.read(1 << 18)
            assert piece, "it was cut off"
            body += piece
    assert body.count(LONG.encode()) == PIECES * TOKENS
