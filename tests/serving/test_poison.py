"""A request that kills the engine that reads it: it gets two at most, and no other request is lost for it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import orjson
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI, BadRequestError, InternalServerError

from gateway.core import FinishReason, GenerateRequest
from gateway.errors import BackendLost, BackendUnavailable
from gateway.language import ModelLanguage
from gateway.routing import PolicyChange
from gateway.routing.policies import Threshold
from gateway.serving import relay_lane
from gateway.settings import QueueSettings
from tests.fakes.backend import Pause, Script, ScriptedBackend
from tests.fakes.openai import Answer, Exchange, saying, sized
from tests.serving.relay_stack import relaying
from tests.serving.stack import HELLO, MODEL, Stack, Writer, connect, eventually, make_stack, raw_client, running

POISON = 13  # max_tokens of what kills
SLOW = 900  # and of what takes long between its two tokens
LATER = 1000  # and of what kills from there on, after some tokens of its answer at each engine
KILLS_S, DOWN_S = 0.05, 0.5
WORD = "Paris"


@dataclass
class Mortals:
    """Both engines die of POISON with all that they have, and are back after DOWN_S."""

    stack: Stack
    writer: Writer
    dead: set[str] = field(default_factory=set)
    deaths: list[str] = field(default_factory=list)
    poisons: int = 0
    witnessed: Counter[str] = field(default_factory=Counter)  # deaths, by requests that were there

    def arm(self, backend: ScriptedBackend) -> None:
        def script(request: GenerateRequest) -> Script:
            if backend.name in self.dead:
                return [BackendUnavailable("refused", was_lost=False)]
            if request.params.max_tokens == POISON:
                self.poisons += 1
                asyncio.get_running_loop().call_later(KILLS_S, self.die, backend)
                return [Pause()]
            if request.params.max_tokens > SLOW:
                self.poisons += 1
                asyncio.get_running_loop().call_later(3 * KILLS_S, self.die, backend)
                return [self.writer.ids(WORD)[:1], Pause(KILLS_S), self.writer.ids(WORD)[:1], Pause()]
            ids = self.writer.ids(WORD)
            begun = tuple(request.prompt.token_ids[-1:]) == tuple(ids[:1])
            first = Pause(0.0 if request.params.max_tokens == 50 else 2 * KILLS_S)
            rest: Script = [
                Pause((4 if request.params.max_tokens < SLOW / 2 else 12) * KILLS_S),
                ids[1:],
                [self.writer.eos],
                STOP,
            ]
            return rest if begun else [first, ids[:1], *rest]

        backend.script = script

    def die(self, backend: ScriptedBackend) -> None:
        if backend.name in self.dead:
            return
        self.deaths.append(backend.name)
        self.dead.add(backend.name)
        backend.ready = False
        for call in backend.live:
            call.is_over = True
            kind = BackendLost if getattr(call.sink, "first", None) is not None else BackendUnavailable
            self.witnessed[call.request.request_id] += 1
            asyncio.get_running_loop().call_soon(call.sink.fail, kind(f"{backend.name} was lost"))
        asyncio.get_running_loop().call_later(DOWN_S, self._return, backend)

    def _return(self, backend: ScriptedBackend) -> None:
        self.dead.discard(backend.name)
        backend.ready = True


STOP = FinishReason.STOP


@asynccontextmanager
async def mortal(
    language: ModelLanguage, writer: Writer, queue: QueueSettings | None = None
) -> AsyncIterator[tuple[Mortals, AsyncOpenAI]]:
    stack = make_stack(language, queue=queue or QueueSettings(max_wait_s=5.0), max_in_flight=100, ejection="off")
    async with running(stack), connect(stack) as client:
        engines = Mortals(stack, writer)
        engines.arm(stack.low)
        engines.arm(stack.high)
        yield engines, client


async def ask(client: AsyncOpenAI, max_tokens: int) -> str:
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, max_tokens=max_tokens)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def ask_poison(client: AsyncOpenAI) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await ask(client, POISON)
    return caught.value


async def test_a_poison_kills_two_engines_and_no_other_request(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client), asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(ask(client, 50)) for _ in range(10)]
        await asyncio.sleep(KILLS_S / 2)
        # As each has a body of its own, nothing is refused for what another one did.
        unbegun = [tasks.create_task(ask(client, 100 + n)) for n in range(4)]
        poison = tasks.create_task(ask_poison(client))
        unbegun += [tasks.create_task(ask(client, 110 + n)) for n in range(4)]
        error = await poison
        assert (error.status_code, error.code) == (503, "backend_unavailable")
        assert [await each for each in (*begun, *unbegun)] == [WORD] * 18
        assert (len(engines.deaths), engines.poisons) == (2, 2)
        again = await ask_poison(client)
        assert isinstance(again, BadRequestError)
        assert (again.code, again.response.headers.get("retry-after")) == ("request_quarantined", None)
        assert 'crossover_refused_total{code="request_quarantined"} 1.0' in engines.stack.metrics
        assert await ask(client, 99) == WORD
    assert (len(engines.deaths), engines.poisons) == (2, 2)


async def test_an_answer_that_kills_its_engines_after_some_tokens_kills_two(
    language: ModelLanguage, writer: Writer
) -> None:
    async with mortal(language, writer) as (engines, client):
        with pytest.raises(APIError, match="was lost"):
            await ask(client, LATER)
        assert (len(engines.deaths), engines.poisons) == (2, 2)
        await eventually(lambda: not engines.dead)
        with pytest.raises(BadRequestError):
            await ask(client, LATER)
        assert await ask(client, 99) == WORD
    assert (len(engines.deaths), engines.poisons) == (2, 2)


async def test_answers_that_have_lost_two_engines_go_on_one_at_a_time_and_what_kills_the_third_is_refused(
    language: ModelLanguage, writer: Writer
) -> None:
    async with mortal(language, writer) as (engines, client), asyncio.TaskGroup() as tasks:
        low_only = Threshold(low="low", high="high", up=1000, down=999, dwell_s=0)
        engines.stack.app.router.set_policy(PolicyChange(low_only, by="test"))
        begun = [tasks.create_task(ask(client, SLOW)) for _ in range(4)]
        await eventually(lambda: len(engines.stack.low.calls) == 4)
        with pytest.raises(APIError, match="was lost"):
            await ask(client, LATER)
        assert [await each for each in begun] == [WORD] * 4
        await eventually(lambda: not engines.dead)
        with pytest.raises(BadRequestError):
            await ask(client, LATER)
    assert sorted(engines.witnessed.values()) == [2, 2, 2, 2, 3]


async def test_what_was_lost_with_a_request_that_is_refused_is_free(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client), asyncio.TaskGroup() as tasks:
        innocent = tasks.create_task(ask(client, SLOW))
        await eventually(lambda: len(engines.stack.low.calls) == 1)
        engines.stack.low.calls[0].steps[:] = [Pause()]  # no token yet
        await ask_poison(client)
        assert await innocent == WORD
    assert sorted(engines.witnessed.values()) == [2, 2]


async def test_an_official_client_sends_a_poison_again_and_is_refused(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client):
        error = await ask_poison(client.with_options(max_retries=2))
        assert (error.status_code, engines.poisons) == (400, 2)


async def test_of_the_same_request_twice_neither_kills_a_third_engine(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client):
        errors = await asyncio.gather(ask_poison(client), ask_poison(client))
        assert sorted(error.status_code for error in errors) == [400, 503]
        assert len(engines.deaths) == 2


async def test_requests_whose_engine_died_go_on_one_at_a_time(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client), asyncio.TaskGroup() as tasks:
        engines.stack.high.script = [Pause()]
        engines.stack.low.script = [Pause(KILLS_S), BackendUnavailable("low was lost")]
        asked = [tasks.create_task(ask(client, 100 + n)) for n in range(4)]
        high = engines.stack.high
        for count in range(1, 5):
            await eventually(lambda: len(high.calls) == count)  # noqa: B023 - awaited here
            await asyncio.sleep(0.1)
            assert len(high.calls) == count
            high.calls[-1].steps[:] = [writer.ids(WORD), Pause(0.5), [writer.eos], STOP]
            high.calls[-1].go_on()
        assert [await each for each in asked] == [WORD] * 4


async def test_those_with_tokens_go_before_those_without(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client), asyncio.TaskGroup() as tasks:
        low, high = engines.stack.low, engines.stack.high
        low.script = lambda request: [writer.ids(WORD)[:1] if request.params.max_tokens == 50 else (), Pause()]
        high.script = [Pause()]
        tasks.create_task(ask(client, 60))
        tasks.create_task(ask(client, 50))
        await eventually(lambda: len(low.calls) == 2 and all(call._timer is None for call in low.calls))
        for call in low.live:
            call.is_over = True
            call.sink.fail(BackendLost("low was lost") if call.request.params.max_tokens == 50 else LOST)
        await asyncio.sleep(0.1)
        assert [call.request.params.max_tokens for call in high.calls] == [49]
        for count in (1, 2):
            await eventually(lambda: len(high.calls) == count)  # noqa: B023 - awaited here
            high.calls[-1].steps[:] = [writer.ids("is"), [writer.eos], STOP]
            high.calls[-1].go_on()


LOST = BackendUnavailable("low was lost")


async def test_who_waits_for_others_waits_no_longer_than_for_an_engine(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer, QueueSettings(max_outage_s=0.3)) as (engines, client):
        low = engines.stack.low
        engines.stack.high.script = [Pause(1.0), *writer.script(WORD)]
        low.script = [Pause()]
        asked = asyncio.gather(*(ask(client, 100 + n) for n in range(3)), return_exceptions=True)
        await eventually(lambda: len(low.calls) == 3 and all(call._timer is None for call in low.calls))
        for call in low.live:
            call.is_over = True
            call.sink.fail(LOST)
        ends = await asked
        assert sum(end == WORD for end in ends) == 1
        assert sum(isinstance(end, InternalServerError) and end.status_code == 503 for end in ends) == 2


async def test_a_request_that_both_engines_refused_is_no_suspect(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client):
        for backend in (engines.stack.low, engines.stack.high):
            engines.die(backend)
        engines.stack.low.ready = engines.stack.high.ready = True  # as far as probes found
        assert await ask(client, 50) == WORD
        assert await ask(client, 50) == WORD


async def test_a_client_that_leaves_frees_the_way_for_the_next(language: ModelLanguage, writer: Writer) -> None:
    async with mortal(language, writer) as (engines, client), AsyncExitStack() as clients:
        engines.stack.low.script, engines.stack.high.script = [Pause(KILLS_S), LOST], [Pause()]
        first = await clients.enter_async_context(raw_client(engines.stack))
        first.ask(stream=True, max_tokens=40)
        await asyncio.sleep(0.01)
        asked = asyncio.ensure_future(ask(client, 41))
        await eventually(lambda: len(engines.stack.high.calls) == 1)
        engines.arm(engines.stack.high)
        first.leave()
        assert await asked == WORD


async def test_a_relayed_poison_kills_two_engines_and_no_other_request() -> None:
    deaths = list[str]()
    async with relaying() as stack, connect(stack) as client:

        def mortal_as(name: str) -> Answer:
            engine = {"low": stack.low, "high": stack.high}[name]

            async def answer(exchange: Exchange) -> None:
                await asyncio.sleep(4 * KILLS_S)  # one that dies at once looks like one that closes an idle connection
                if orjson.loads(exchange.body)["max_tokens"] == POISON:
                    deaths.append(name)
                    for each in list(engine.live):
                        each.abort()
                    return
                await asyncio.sleep(KILLS_S)
                await exchange.say(sized(b"{}"))

            return answer

        stack.low.answer, stack.high.answer = mortal_as("low"), mortal_as("high")

        async def post(max_tokens: int) -> int:
            raw = client.chat.completions.with_raw_response
            try:
                return (await raw.create(model=MODEL, messages=HELLO, max_tokens=max_tokens)).status_code
            except APIStatusError as error:
                return error.status_code

        ends = await asyncio.gather(post(POISON), *(post(100 + n) for n in range(3)))
        assert ends == [503, 200, 200, 200]
        assert (await post(POISON), len(deaths)) == (400, 2)


async def test_what_proxies_cannot_send_on_is_no_suspect() -> None:
    async with relaying() as stack, raw_client(stack) as client, asyncio.timeout(5):
        for fails in (True, True, False):
            stack.low.answer = stack.high.answer = saying(sized(b"{}", 504 if fails else 200))
            await eventually(lambda: stack.is_ready("low") and stack.is_ready("high"))
            client.ask(stream=False)
            assert (await client.answer()).status == (503 if fails else 200)
        assert len(stack.low.exchanges) + len(stack.high.exchanges) == 2 + 2 + 1  # a proxy's server may be at work


async def test_a_suspect_whose_engine_lives_with_it_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_lane, "PROVEN_S", 0.2)
    most = 0

    async def die(exchange: Exchange) -> None:
        await asyncio.sleep(2 * KILLS_S)
        exchange.abort()

    async def take_long(exchange: Exchange) -> None:
        nonlocal most
        most = max(most, len(stack.high.live))
        await asyncio.sleep(1)
        await exchange.say(sized(b"{}"))

    async with relaying() as stack, connect(stack) as client:
        stack.low.answer, stack.high.answer = die, take_long
        started = asyncio.get_running_loop().time()
        posts = [client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=n) for n in (1, 2, 3)]
        await asyncio.gather(*posts)
        assert most == 3
        assert asyncio.get_running_loop().time() - started < 2.5
