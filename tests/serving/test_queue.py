"""Requests that engines have no room for, or for which no engine is there: they wait in the gateway, within bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
import pytest
from openai import APIStatusError, AsyncOpenAI, RateLimitError

from gateway.access import KeyFile, Scope
from gateway.core import GenerateRequest
from gateway.errors import BackendUnavailable
from gateway.language import ModelLanguage
from gateway.settings import LimitSettings, QueueSettings
from tests.fakes.backend import Pause, Script
from tests.serving.stack import HELLO, MODEL, Stack, Writer, connect, eventually, make_stack, raw_client, running

TIMELY = QueueSettings(max_waiting=8, max_wait_s=5.0)


@asynccontextmanager
async def queueing(
    language: ModelLanguage, max_in_flight: int | None = 1, queue: QueueSettings = TIMELY, keys: Path | None = None
) -> AsyncIterator[tuple[Stack, AsyncOpenAI]]:
    """Two engines that take one request each at once. `keys`: the folder of a key file."""
    stack = make_stack(language, queue=queue, max_in_flight=max_in_flight, state_folder=keys)
    async with running(stack) as stack, stack.app.endpoints.mover.running(), connect(stack) as client:
        yield stack, client


def waiting(stack: Stack) -> int:
    return stack.app.router.model_state(MODEL).waiting


def held(writer: Writer) -> Script:
    return [Pause(), *writer.script("Paris")]


def release(stack: Stack, writer: Writer) -> None:
    """Lets what is held go on, and what comes later be answered at once."""
    if not callable(stack.low.script):
        stack.low.script = stack.high.script = writer.script("Paris")
    for call in (*stack.low.live, *stack.high.live):
        call.go_on()


async def ask(client: AsyncOpenAI, **fields: object) -> str:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, **fields)  # type: ignore[call-overload]  # any field
    return str(answer.choices[0].message.content)


async def test_what_no_engine_has_room_for_waits_and_is_answered(language: ModelLanguage, writer: Writer) -> None:
    async with queueing(language) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        asked = [tasks.create_task(ask(client)) for _ in range(6)]
        await eventually(lambda: waiting(stack) == 4)
        assert stack.in_flight == {"low": 1, "high": 1}  # the second one spills over
        async with raw_client(stack) as raw:
            raw.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "messages": HELLO}))
            await eventually(lambda: waiting(stack) == 5)
            release(stack, writer)
            assert ", queue;dur=" in (await raw.answer()).headers["server-timing"]
        assert [await each for each in asked] == ["Paris"] * 6
        assert waiting(stack) == 0


async def test_choices_count_each(language: ModelLanguage, writer: Writer) -> None:
    async with queueing(language, max_in_flight=4) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(3):
            tasks.create_task(ask(client, n=3))
        await eventually(lambda: waiting(stack) == 1)
        assert stack.in_flight == {"low": 3, "high": 3}
        release(stack, writer)


async def test_more_choices_than_an_engine_has_room_for_wait_for_half_of_it(
    language: ModelLanguage, writer: Writer
) -> None:
    async with queueing(language, max_in_flight=4) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(8):
            tasks.create_task(ask(client))
        await eventually(lambda: stack.in_flight == {"low": 4, "high": 4})
        tasks.create_task(ask(client, n=6))
        await eventually(lambda: waiting(stack) == 1)
        for call in stack.low.live[:2]:
            call.go_on()
        await eventually(lambda: stack.in_flight == {"low": 8, "high": 4})
        release(stack, writer)


async def test_who_has_the_higher_priority_is_answered_first(language: ModelLanguage, writer: Writer) -> None:
    order = list[int]()

    def note(request: GenerateRequest) -> Script:
        order.append(request.params.priority)
        return writer.script("Paris")

    async with queueing(language) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(2):
            tasks.create_task(ask(client))
        await eventually(lambda: sum(stack.in_flight.values()) == 2)
        stack.low.script = stack.high.script = note
        tasks.create_task(ask(client, service_tier="flex"))
        await eventually(lambda: waiting(stack) == 1)
        tasks.create_task(ask(client))
        await eventually(lambda: waiting(stack) == 2)
        tasks.create_task(ask(client, extra_body={"priority": -5}))
        await eventually(lambda: waiting(stack) == 3)
        release(stack, writer)
    assert order == [-5, 0, 1]


async def test_keys_take_turns(language: ModelLanguage, writer: Writer, tmp_path: Path) -> None:
    file, order = KeyFile(tmp_path), list[int]()
    heavy, light = (file.create(name, (Scope.INFERENCE,), None) for name in ("heavy", "light"))

    def note(request: GenerateRequest) -> Script:
        order.append(request.params.max_tokens)
        return writer.script("Paris")

    async with queueing(language, keys=tmp_path) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for count in range(1, 7):
            tasks.create_task(ask(client.with_options(api_key=heavy), max_tokens=100))
            await eventually(lambda: sum(stack.in_flight.values()) + waiting(stack) == count)  # noqa: B023 - awaited here
        stack.low.script = stack.high.script = note
        tasks.create_task(ask(client.with_options(api_key=light), max_tokens=99))
        await eventually(lambda: waiting(stack) == 5)
        release(stack, writer)
    assert order.index(99) <= 1


async def test_some_room_is_kept_for_those_that_go_ahead(language: ModelLanguage, writer: Writer) -> None:
    async with queueing(language, max_in_flight=4) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(10):
            tasks.create_task(ask(client))
        await eventually(lambda: waiting(stack) == 2)
        assert stack.in_flight == {"low": 4, "high": 4}
        stack.low.live[0].go_on()
        await eventually(lambda: stack.in_flight["low"] == 3)
        await asyncio.sleep(0.2)  # some beats
        assert waiting(stack) == 2
        stack.low.script = writer.script("Paris")
        assert await ask(client, service_tier="priority") == "Paris"
        assert waiting(stack) == 2
        release(stack, writer)


async def test_a_client_that_leaves_waits_no_more(language: ModelLanguage, writer: Writer) -> None:
    async with (
        queueing(language, queue=QueueSettings(max_wait_s=60.0)) as (stack, client),
        asyncio.TaskGroup() as tasks,
    ):
        stack.low.script = stack.high.script = held(writer)
        for _ in range(2):
            tasks.create_task(ask(client))
        await eventually(lambda: sum(stack.in_flight.values()) == 2)
        async with raw_client(stack) as raw:
            raw.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "messages": HELLO}))
            await eventually(lambda: waiting(stack) == 1)
        await eventually(lambda: waiting(stack) == 0)
        release(stack, writer)
    assert len(stack.low.calls) + len(stack.high.calls) == 2


async def test_a_full_queue_refuses_and_says_when_to_come_back(language: ModelLanguage, writer: Writer) -> None:
    queue = QueueSettings(max_waiting=1, max_wait_s=5.0)
    async with queueing(language, queue=queue) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(3):
            tasks.create_task(ask(client))
        await eventually(lambda: waiting(stack) == 1)
        with pytest.raises(RateLimitError) as caught:
            await ask(client)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "overloaded"
        release(stack, writer)


async def test_who_waits_too_long_is_refused(language: ModelLanguage, writer: Writer) -> None:
    queue = QueueSettings(max_wait_s=0.2)
    async with queueing(language, queue=queue) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(2):
            tasks.create_task(ask(client))
        await eventually(lambda: sum(stack.in_flight.values()) == 2)
        with pytest.raises(RateLimitError):
            await ask(client)
        release(stack, writer)


async def test_what_has_not_begun_waits_for_any_engine(language: ModelLanguage, writer: Writer) -> None:
    async with queueing(language) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.high.ready = False
        await eventually(lambda: not stack.is_ready("high"))
        stack.low.ready = False
        stack.low.script = [BackendUnavailable("low was lost")]
        stack.high.script = writer.script("Paris")
        asked = [tasks.create_task(ask(client)) for _ in range(3)]  # one finds out that low is gone
        await eventually(lambda: waiting(stack) + stack.in_flight["low"] == 3)
        assert not any(each.done() for each in asked)
        stack.high.ready = True
        assert [await each for each in asked] == ["Paris"] * 3


@pytest.mark.parametrize("outage_s", [0.3, 0.0])
async def test_where_no_engine_comes_the_client_is_told_so(language: ModelLanguage, outage_s: float) -> None:
    async with queueing(language, queue=QueueSettings(max_outage_s=outage_s)) as (stack, client):
        stack.low.ready = stack.high.ready = False
        await eventually(lambda: not stack.is_ready("low") and not stack.is_ready("high"))
        with pytest.raises(APIStatusError) as caught:
            await ask(client)
        assert (caught.value.status_code, caught.value.code) == (503, "backend_unavailable")


async def test_a_pinned_request_does_not_wait(language: ModelLanguage, writer: Writer) -> None:
    async with queueing(language) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        for _ in range(4):
            tasks.create_task(ask(client))
        await eventually(lambda: waiting(stack) == 2)
        stack.low.script = writer.script("Paris")
        assert await ask(client, extra_headers={"x-crossover-pin": "low"}) == "Paris"
        stack.high.ready = False
        await eventually(lambda: not stack.is_ready("high"))
        with pytest.raises(APIStatusError):
            await ask(client, extra_headers={"x-crossover-pin": "high"})
        release(stack, writer)


async def test_the_end_of_the_gateway_ends_what_waits(language: ModelLanguage, writer: Writer) -> None:
    async with queueing(language) as (stack, client):
        stack.low.script = stack.high.script = held(writer)
        ends = asyncio.gather(*(ask(client) for _ in range(5)), return_exceptions=True)
        await eventually(lambda: waiting(stack) == 3)
        stack.app.endpoints.stop()
        assert [getattr(end, "status_code", None) for end in await ends] == [503] * 5
        assert waiting(stack) == 0


async def test_engines_that_fail_at_once_do_not_nest(language: ModelLanguage, writer: Writer) -> None:
    """What one end lets begin may end at once, and lets the next one begin: in a loop, not in one another."""
    queue = QueueSettings(max_waiting=2000, max_wait_s=30.0)
    async with queueing(language, queue=queue) as (stack, client), asyncio.TaskGroup() as tasks:
        stack.low.script = stack.high.script = held(writer)
        asked = [tasks.create_task(ask(client)) for _ in range(400)]
        await eventually(lambda: waiting(stack) == 398)
        release(stack, writer)
        assert [await each for each in asked] == ["Paris"] * 400


BUFFER = 1 << 16  # at both ends of a connection, where kernels would let several megabytes lie


async def test_an_answer_that_is_not_read_gives_its_place_to_a_request_that_waits(
    language: ModelLanguage, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.serving.dispatch.UNREAD_S", 0.3)
    limits = LimitSettings(client_write_timeout_s=60)
    stack = make_stack(language, limits, queue=QueueSettings(max_wait_s=30), max_in_flight=1)
    much = [writer.ids("additionalProperties" * 250)] * 600  # 3 MB
    stack.low.script = stack.high.script = [*much, Pause()]
    async with running(stack, BUFFER), stack.app.endpoints.mover.running(), AsyncExitStack() as clients:
        for number in (1, 2):
            rude = await clients.enter_async_context(raw_client(stack, BUFFER))
            rude.stop_reading()
            rude.ask(stream=True)
            await eventually(lambda: sum(stack.in_flight.values()) == number)  # noqa: B023 - awaited here
        await asyncio.sleep(1)
        assert stack.in_flight == {"low": 1, "high": 1}  # nobody waits
        stack.low.script = stack.high.script = writer.script("Paris")
        healthy = await clients.enter_async_context(raw_client(stack))
        healthy.ask()
        async with asyncio.timeout(3):
            assert (await healthy.answer()).status == 200
    assert stack.counted("low", "cancelled")
    assert stack.counted("high", "cancelled")
