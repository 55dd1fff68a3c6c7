"""An engine whose health page is green and whose answers are none: it is left, tried, and used again."""

import asyncio
import logging
import time

import pytest
from openai import APIError, AsyncOpenAI

from gateway.core import FinishReason
from gateway.errors import BackendError, BackendUnavailable
from gateway.language import ModelLanguage
from tests.fakes.backend import Pause, Script
from tests.serving.stack import HELLO, MODEL, Stack, Writer, connect, eventually, make_stack, raw_client, running


async def ask(client: AsyncOpenAI, times: int, **fields: object) -> int:
    """Asks in turns of five. Returns how many clients got no whole answer."""

    async def ask_once() -> bool:
        try:
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **fields)  # type: ignore[call-overload]  # any field
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        except APIError:
            return False
        return text == "Paris"

    answered = []
    for _ in range(times // 5):
        answered += await asyncio.gather(*(ask_once() for _ in range(5)))
    return answered.count(False)


async def test_a_sick_engine_costs_clients_nothing_and_is_left_until_it_is_well(
    client: AsyncOpenAI, stack: Stack, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stack.high.script = lambda request: writer.script("Paris"[len(writer_text(writer, request.prompt.token_ids)) :])
    stack.low.script = [BackendUnavailable("low was lost")]  # what else an engine may do is in test_sick_engines.py
    assert await ask(client, 200) == 0
    assert is_ejected(stack, "low")
    assert len(stack.low.calls) < 40
    assert caplog.text.count("backend low (tiny) is ejected: most of its requests fail") == 1
    stack.low.script = writer.script("Paris")
    await eventually(lambda: "generates again" in caplog.text)
    while is_ejected(stack, "low"):
        assert await ask(client, 5) == 0
        await asyncio.sleep(0.05)
    before = len(stack.low.calls)
    assert await ask(client, 20) == 0
    assert len(stack.low.calls) > before + 10


def writer_text(writer: Writer, token_ids: tuple[int, ...]) -> str:
    """What of the answer a prompt ends with: an answer that goes on has its first tokens in it."""
    first = writer.ids("Paris")[:1]
    return writer.tokenizer.decode(first) if list(token_ids[-1:]) == first else ""


def is_ejected(stack: Stack, name: str) -> bool:
    return stack.app.router.model_state(MODEL).backends[name].is_ejected


async def test_an_engine_is_not_ejected_while_no_other_serves(client: AsyncOpenAI, stack: Stack) -> None:
    stack.low.script = stack.high.script = [BackendError("out of memory")]
    assert await ask(client, 20) == 20
    assert not is_ejected(stack, "low")
    assert not is_ejected(stack, "high")
    stack.high.ready = False
    await eventually(lambda: not stack.is_ready("high"))
    assert await ask(client, 20) == 20
    assert not is_ejected(stack, "low")


async def test_requests_that_fail_everywhere_and_refusals_eject_nobody(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = lambda request: [BackendError("?")] if request.params.seed == 1 else writer.script("Paris")
    stack.high.script = stack.low.script
    for _ in range(4):
        assert await ask(client, 5, seed=1) == 5
    assert not is_ejected(stack, "low")
    assert await ask(client, 20) == 0


async def test_the_ejected_engine_serves_where_the_other_goes_away(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script, stack.high.script = [BackendError("out of memory")], writer.script("Paris")
    assert await ask(client, 10) == 0
    assert is_ejected(stack, "low")
    stack.low.script, stack.high.ready = writer.script("Paris"), False
    await eventually(lambda: not stack.is_ready("high"))
    assert await ask(client, 20) == 0


async def test_an_engine_that_fails_its_trial_gets_no_request(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script, stack.high.script = [BackendError("out of memory")], writer.script("Paris")
    assert await ask(client, 10) == 0
    users = [call.request.request_id for call in stack.low.calls]
    await asyncio.sleep(3.5)  # two trials
    tried = [call.request for call in stack.low.calls if call.request.request_id not in users]
    assert {(request.request_id.split("-")[0], request.params.max_tokens) for request in tried} == {("trial", 1)}
    assert len(tried) == 2
    assert await ask(client, 10) == 0
    assert len(stack.low.calls) == len(users) + 2


async def test_one_whose_health_page_turns_red_begins_anew(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    """Another server may come in its place."""
    stack.low.script, stack.high.script = [BackendError("out of memory")], writer.script("Paris")
    assert await ask(client, 10) == 0
    stack.low.script, stack.low.ready = writer.script("Paris"), False
    await eventually(lambda: not stack.is_ready("low"))
    assert not is_ejected(stack, "low")
    stack.low.ready = True
    await eventually(lambda: stack.is_ready("low"))
    before = len(stack.low.calls)
    assert await ask(client, 10) == 0
    assert len(stack.low.calls) > before + 5


async def test_ejection_can_be_turned_off(language: ModelLanguage, writer: Writer) -> None:
    async with running(make_stack(language, ejection="off")) as stack, connect(stack) as client:
        stack.low.script, stack.high.script = [BackendError("out of memory")], writer.script("Paris")
        assert await ask(client, 50) == 0
        assert len(stack.low.calls) >= 40  # of five at once the policy sends one to the other
        assert not is_ejected(stack, "low")


# Engines that accept requests and generate nothing.


@pytest.mark.parametrize("says", ["nothing", "a token"])
async def test_a_silent_engine_is_left_at_once_by_all_that_may_go(
    client: AsyncOpenAI, stack: Stack, writer: Writer, says: str
) -> None:
    stack.low.script = stack.high.script = writer.script("Paris")
    async with stack.app.endpoints.mover.running():
        assert await ask(client, 40) == 0
        await asyncio.sleep(0.2)
        first = writer.ids("Paris")[:1]
        stack.low.script = [first, Pause()] if says == "a token" else [Pause()]
        stack.high.script = lambda request: writer.script("Paris"[len(writer_text(writer, request.prompt.token_ids)) :])
        started = time.monotonic()
        assert await ask(client, 5) == 0
        assert 1.0 < time.monotonic() - started < 4.0
        assert is_ejected(stack, "low")
        assert await ask(client, 50) == 0
        assert time.monotonic() - started < 5.0


async def test_what_may_not_go_waits_for_a_silent_engine_to_wake_up(stack: Stack, writer: Writer) -> None:
    stack.low.script = stack.high.script = writer.script("Paris")
    async with stack.app.endpoints.mover.running(), connect(stack) as client:
        assert await ask(client, 40) == 0
        stack.low.script = [writer.ids("Paris")[:1], Pause(2.0), *writer.script("Paris")[1:]]
        async with raw_client(stack) as begun:
            begun.ask(seed=1, temperature=1.0, stream=True)
            await eventually(lambda: is_ejected(stack, "low"))
            at_high = len(stack.high.calls)
            answer = await begun.answer()
    assert (b"error" in answer.body, b"[DONE]" in answer.body, len(stack.high.calls) - at_high) == (False, True, 0)


async def test_an_engine_half_of_whose_streams_are_silent_is_not_stuck(stack: Stack, writer: Writer) -> None:
    stack.low.script = stack.high.script = writer.script("Paris")
    async with stack.app.endpoints.mover.running(), connect(stack) as client:
        assert await ask(client, 40) == 0
        slow: Script = [
            step for token in writer.ids("Paris is the capital of France.") for step in ([token], Pause(0.3))
        ]
        scripts = iter([
            [*slow, FinishReason.LENGTH],
            [writer.ids("Paris")[:1], Pause(2.0), *writer.script("Paris")[1:]],
        ])
        stack.low.script = lambda _: next(scripts)
        at_high = len(stack.high.calls)
        await asyncio.gather(*(client.chat.completions.create(model=MODEL, messages=HELLO) for _ in range(2)))
        assert len(stack.high.calls) == at_high
    assert not is_ejected(stack, "low")
