"""Clients that leave, in every phase, and clients that stop reading: the engine call ends and the slot is freed."""

import asyncio

import pytest
from openai import AsyncOpenAI

from gateway.core import FinishReason, GenerateRequest
from tests.api.conftest import HELLO, LIMITS, MODEL, Stack, Writer, eventually, raw_client
from tests.fakes.backend import Pause, Script


async def expect_cancelled(stack: Stack) -> None:
    await stack.settle(within_s=5)
    assert [call.was_cancelled for call in stack.low.calls] == [True]
    assert stack.in_flight == {"low": 0, "high": 0}
    metrics = stack.app.metrics.render().decode()
    assert f'crossover_requests_total{{backend="low",model="{MODEL}",outcome="cancelled"}} 1.0' in metrics


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_slot_is_freed_when_client_leaves_before_first_token(stack: Stack, stream: bool) -> None:
    stack.low.script = [Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=stream)
        await eventually(lambda: len(stack.low.calls) == 1)
        assert stack.in_flight == {"low": 1, "high": 0}
        client.leave()
        await expect_cancelled(stack)


async def test_slot_is_freed_when_client_leaves_mid_stream(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=True)
        await client.until(b"Paris")
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


async def test_a_half_closed_connection_counts_as_left(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=True)
        await client.until(b"Paris")
        client.writer.write_eof()
        await expect_cancelled(stack)


async def test_nothing_starts_for_a_client_that_leaves_while_it_sends_its_body(stack: Stack) -> None:
    async with raw_client(stack) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await client.writer.drain()
        client.leave()
    await stack.settle()
    assert not stack.low.calls


async def test_neighbours_are_unharmed_by_a_client_that_leaves(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = [writer.ids("Paris"), Pause(), *writer.says(" is nice.")]
    async with raw_client(stack) as leaver:
        leaver.ask(stream=True)
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        await leaver.until(b"Paris")
        leaver.leave()
        await eventually(lambda: len(stack.low.live) == 1)
        stack.low.live[0].go_on()
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(texts) == "Paris is nice."


def number_of(request: GenerateRequest) -> int:
    """Which of the two hundred it is: max_tokens tells."""
    return request.params.max_tokens - 100


async def test_forty_of_two_hundred_streams_leave_and_nothing_is_left_behind(stack: Stack, writer: Writer) -> None:
    """Twenty leave before the first token, twenty mid-stream; the others hear every token."""

    def script(request: GenerateRequest) -> Script:
        n = number_of(request)
        first: Script = [] if n < 20 else [writer.ids("Paris")]
        return [*first, Pause()] if n < 40 else [*first, Pause(0.05), *writer.says(f" {n} done")]

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
                assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")

    stack.low.script = stack.high.script = script
    async with asyncio.TaskGroup() as tasks:
        for n in range(200):
            tasks.create_task(ask(n))
    await stack.settle(within_s=5)
    assert sorted(map(number_of, stack.requests)) == list(range(200))
    assert sum(call.was_cancelled for call in stack.low.calls + stack.high.calls) == 40


def say_much(writer: Writer, pieces: int) -> Script:
    """More text than sockets hold: each piece is a frame of 5 kB."""
    return [*[writer.ids(" nice") * 1000] * pieces, FinishReason.LENGTH]


async def test_a_client_that_stops_reading_is_cut_off_in_time(stack: Stack, writer: Writer) -> None:
    stack.low.script = say_much(writer, 4000)
    async with raw_client(stack) as client:
        client.stop_reading()
        client.ask(stream=True)
        await eventually(lambda: stack.in_flight["low"] == 1)
        await stack.settle(within_s=30)
        client.go_on_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
    outcomes = stack.app.metrics.render().decode()
    assert f'crossover_requests_total{{backend="low",model="{MODEL}",outcome="cancelled"}} 1.0' in outcomes


async def test_a_client_that_reads_slowly_gets_everything(stack: Stack, writer: Writer) -> None:
    stack.low.script = say_much(writer, 1500)
    async with raw_client(stack) as client:
        client.ask(stream=True)
        body, is_slow = b"", True
        while not body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            await asyncio.sleep(LIMITS.client_write_timeout_s / 20 if is_slow else 0)
            body += await client.reader.read(1 << 18)
            is_slow = len(body) < 1 << 22
    assert body.count(b" nice") == 1_500_000


async def test_a_folded_answer_to_a_client_that_stops_reading_is_cut_off_in_time(stack: Stack, writer: Writer) -> None:
    """Its place is free at once, because the engine has done its part; only the gateway still holds the answer."""
    stack.low.script = say_much(writer, 3000)
    async with raw_client(stack) as client:
        client.stop_reading()
        client.ask(stream=False)
        await eventually(lambda: bool(stack.low.calls) and stack.low.calls[0].is_over, within_s=30)
        await stack.settle()
        await asyncio.sleep(2 * LIMITS.client_write_timeout_s)
        client.go_on_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
