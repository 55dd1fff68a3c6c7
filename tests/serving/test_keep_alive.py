"""Comments on silent streams, where the operator wants them."""

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.core import FinishReason
from gateway.errors import BackendError, BackendUnavailable
from gateway.language import ModelLanguage
from gateway.serving.token_lane import KeepAlive
from gateway.settings import StreamSettings
from tests.fakes.backend import Pause, Step
from tests.serving.stack import HELLO, MODEL, Stack, Writer, eventually, make_stack, raw_client, running

ALIVE = ": keep-alive"
OFTEN_S = 0.02
SILENCE = Pause(0.2)
BODY = {"model": MODEL, "messages": HELLO, "stream": True}


@pytest.fixture
async def stack(language: ModelLanguage, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    commits, seconds = request.param
    streams = StreamSettings(keep_alive_s=seconds, keep_alive_commits=commits)
    async with running(make_stack(language, streams=streams)) as stack:
        yield stack


async def ask(stack: Stack, body: dict[str, object] = BODY) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{stack.url}/v1/chat/completions", json=body, timeout=10)


@pytest.mark.parametrize("stack", [(False, OFTEN_S)], indirect=True)
async def test_a_stream_that_has_begun_gets_a_comment_for_each_silent_while(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), SILENCE, writer.ids(" is"), FinishReason.LENGTH]
    answer = await ask(stack)
    blocks = answer.text.split("\n\n")
    assert 2 <= blocks.count(ALIVE) <= 10
    assert next(block for block in blocks if block and block != ALIVE).startswith("data: ")
    assert blocks[-2] == "data: [DONE]"


@pytest.mark.parametrize("stack", [(False, OFTEN_S)], indirect=True)
async def test_nothing_is_sent_before_the_first_token_so_that_errors_keep_their_status(
    stack: Stack, writer: Writer
) -> None:
    stack.low.script = [SILENCE, BackendUnavailable("low is down")]
    stack.high.script = [SILENCE, *writer.script("Rome")]
    answer = await ask(stack)
    assert ALIVE not in answer.text
    assert answer.headers["x-crossover-backend"] == "high"


@pytest.mark.parametrize("stack", [(True, OFTEN_S)], indirect=True)
async def test_a_comment_may_commit_the_status_and_then_errors_are_events(stack: Stack, writer: Writer) -> None:
    stack.low.script = [SILENCE, *writer.script("Rome")]
    data = [block for block in (await ask(stack)).text.split("\n\n") if block.startswith("data: ")]
    assert ('"role":"assistant"' in data[0], data[-1]) == (True, "data: [DONE]")
    stack.low.script, stack.high.ready = [SILENCE, BackendError("low failed")], False
    await eventually(lambda: not stack.is_ready("high"))
    answer = await ask(stack)
    assert answer.status_code == 200
    assert answer.text.startswith(ALIVE)
    assert "low failed" in answer.text.split("\n\n")[-2]


@pytest.mark.parametrize("stack", [(True, OFTEN_S)], indirect=True)
async def test_an_answer_that_is_not_streamed_gets_none(stack: Stack, writer: Writer) -> None:
    stack.low.script = [SILENCE, *writer.script("Rome")]
    answer = await ask(stack, {**BODY, "stream": False})
    assert answer.json()["choices"][0]["message"]["content"] == "Rome"


@pytest.mark.parametrize("stack", [(True, 0.5)], indirect=True)
async def test_a_stream_without_silences_gets_none(stack: Stack, writer: Writer) -> None:
    step: list[Step] = [writer.ids(" a"), Pause(0.05)]
    stack.low.script = [*step * 15, FinishReason.LENGTH]
    assert ALIVE not in (await ask(stack)).text


@pytest.mark.parametrize("stack", [(False, OFTEN_S)], indirect=True)
async def test_no_comment_follows_an_end_that_comes_when_one_is_due(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("Paris"), Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=True)
        await client.until(b'"content":"Paris"')
        (call,) = stack.low.live
        call.is_over = True
        call.sink.finish(FinishReason.LENGTH)
        time.sleep(2 * OFTEN_S)  # noqa: ASYNC251 - the loop is busy; when it goes on, the next comment is due
        await client.until(b"0\r\n\r\n")
        stack.low.script = writer.script("Rome")
        client.ask()
        assert (await client.answer()).status == 200  # nothing stood between the two


async def test_a_comment_that_ends_its_own_stream_is_the_last() -> None:
    comments: list[float] = []
    keep_alive: KeepAlive

    def write_comment() -> None:
        comments.append(time.monotonic())
        keep_alive.stop()

    keep_alive = KeepAlive(0.02, lambda: 0.0, time.monotonic, write_comment)
    keep_alive.start()
    await asyncio.sleep(0.2)
    assert len(comments) == 1
