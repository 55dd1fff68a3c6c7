"""One model on both lanes: what the token lane does not speak goes on as it came, all else never does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import orjson
import pytest

from gateway.api import RelayLane, TokenLane
from gateway.app import App, compose
from gateway.backends.relay import RelayServer
from gateway.language import ModelLanguage
from gateway.routing import Fleet
from gateway.routing.policies import Threshold
from gateway.settings import ModelSettings, ProbeSettings, RelaySettings, Settings, TritonSettings
from tests.api.conftest import HELLO, LIMITS, MODEL, TOKENIZER, Writer, eventually, serving
from tests.fakes.backend import ScriptedBackend
from tests.fakes.openai import Exchange, FakeOpenAI, saying, sized

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SEEN = b'{"choices":[{"message":{"content":"a cat"}}]}'


@dataclass(slots=True)
class Mixed:
    """`low` and `high` take tokens; `eyes` only bodies."""

    low: ScriptedBackend
    high: ScriptedBackend
    eyes: FakeOpenAI
    app: App
    port: int = 0

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as client:
            return await client.post(path, json=body, headers=headers)

    @property
    def in_flight(self) -> int:
        return sum(backend.in_flight for backend in self.app.router.model_state(MODEL).backends.values())


@asynccontextmanager
async def mixed(
    language: ModelLanguage, *, has_eyes: bool = True, relay_paths: frozenset[str] | None = None
) -> AsyncIterator[Mixed]:
    """`relay_paths`: the model's own; another one has the default's."""
    async with AsyncExitStack() as opened:
        eyes = await opened.enter_async_context(FakeOpenAI(saying(sized(SEEN))).serving())
        low, high = ScriptedBackend("low"), ScriptedBackend("high")
        relayed = RelaySettings("eyes", eyes.url, connect_timeout_s=5.0)
        relay = {"eyes": RelayServer(relayed)} if has_eyes else {}
        for server in relay.values():
            opened.push_async_callback(server.aclose)
        model = ModelSettings(
            id=MODEL,
            tokenizer=TOKENIZER,
            backends={
                "low": TritonSettings("low", "grpc://unused:1"),
                "high": TritonSettings("high", "grpc://unused:1"),
            }
            | ({"eyes": relayed} if has_eyes else {}),
            policy=Threshold(low="low", high="high", up=5, down=2, dwell_s=0),
        )
        paths = model.relay_paths if relay_paths is None else relay_paths
        lane = TokenLane(language, {"low": low, "high": high}, RelayLane(relay), paths)
        fleet = Fleet(model, {"low": low, "high": high, **relay}, ProbeSettings(interval_s=0.05, down_interval_s=0.02))
        app = compose(Settings((model,), "127.0.0.1:0", limits=LIMITS), {MODEL: lane}, [fleet])
        await opened.enter_async_context(app.router.watching())
        port = await opened.enter_async_context(serving(app))
        stack = Mixed(low, high, eyes, app, port)
        await eventually(lambda: all(state.is_ready for state in app.router.model_state(MODEL).backends.values()))
        yield stack
        await eventually(lambda: stack.in_flight == 0)


async def test_a_picture_goes_on_as_it_came_and_the_reason_says_why(language: ModelLanguage) -> None:
    async with mixed(language) as stack:
        messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]
        answer = await stack.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "vendor_field": 1})
        assert answer.content == SEEN
        assert answer.headers["x-crossover-backend"] == "eyes"
        assert answer.headers["x-crossover-reason"].startswith("needs=relay ")
        (exchange,) = stack.eyes.exchanges
        assert orjson.loads(exchange.body) == {"model": MODEL, "messages": messages, "vendor_field": 1}


async def test_what_goes_on_is_json_whatever_its_client_calls_it_and_counts_its_choices(
    language: ModelLanguage,
) -> None:
    async with mixed(language) as stack:
        held = asyncio.Event()

        async def hold(exchange: Exchange) -> None:
            await held.wait()
            await exchange.say(sized(SEEN))

        stack.eyes.answer = hold
        asked_for = {"model": MODEL, "messages": [{"role": "user", "content": [IMAGE]}], "n": 3}
        body = orjson.dumps(asked_for, option=orjson.OPT_INDENT_2)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stack.port}") as client, asyncio.TaskGroup() as tasks:
            headers = {"content-type": "text/plain"}
            asked = tasks.create_task(client.post("/v1/chat/completions", content=body, headers=headers))
            await eventually(lambda: stack.in_flight == 3)
            held.set()
        assert asked.result().content == SEEN
        (exchange,) = stack.eyes.exchanges
        assert (exchange.body, exchange.field(b"content-type")) == (body, [b"application/json"])


async def test_a_picture_that_no_engine_can_see_is_refused_by_its_place(language: ModelLanguage) -> None:
    async with mixed(language, has_eyes=False) as stack:
        messages = [{"role": "user", "content": [IMAGE]}]
        answer = await stack.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages.0.content.0.type"


async def test_a_path_that_the_operator_allows_goes_on_and_no_other_does(language: ModelLanguage) -> None:
    async with mixed(language) as stack:
        answer = await stack.post("/v1/embeddings", {"model": MODEL, "input": "Hello"})
        assert (answer.content, answer.headers["x-crossover-backend"]) == (SEEN, "eyes")
        assert (await stack.post("/v1/rerank", {"model": MODEL})).status_code == 404


@pytest.mark.parametrize(("has_eyes", "relay_paths"), [(False, None), (True, frozenset[str]())])
async def test_a_path_that_no_engine_of_the_model_or_not_the_model_takes_is_refused(
    language: ModelLanguage, has_eyes: bool, relay_paths: frozenset[str] | None
) -> None:
    async with mixed(language, has_eyes=has_eyes, relay_paths=relay_paths) as stack:
        answer = await stack.post("/v1/embeddings", {"model": MODEL, "input": "Hello"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        assert not stack.eyes.exchanges


async def test_what_the_token_lane_speaks_waits_for_it_even_if_only_a_relayed_engine_is_up(
    language: ModelLanguage, writer: Writer
) -> None:
    async with mixed(language) as stack:
        stack.low.ready = stack.high.ready = False
        states = stack.app.router.model_state
        await eventually(
            lambda: not states(MODEL).backends["low"].is_ready and not states(MODEL).backends["high"].is_ready
        )
        answer = await stack.post("/v1/chat/completions", {"model": MODEL, "messages": HELLO})
        assert answer.status_code == 503
        assert not stack.eyes.exchanges


async def test_a_pin_to_a_relayed_engine_is_obeyed_by_the_lane_that_it_has(language: ModelLanguage) -> None:
    async with mixed(language) as stack:
        answer = await stack.post(
            "/v1/chat/completions", {"model": MODEL, "messages": HELLO}, **{"x-crossover-pin": "eyes"}
        )
        assert (answer.content, answer.headers["x-crossover-reason"]) == (SEEN, "pin")


@pytest.mark.parametrize("backend", ["low", "high"])
async def test_a_picture_pinned_to_an_engine_without_eyes_is_refused(language: ModelLanguage, backend: str) -> None:
    async with mixed(language) as stack:
        body = {"model": MODEL, "messages": [{"role": "user", "content": [IMAGE]}]}
        answer = await stack.post("/v1/chat/completions", body, **{"x-crossover-pin": backend})
        assert answer.status_code == 400
        assert backend in answer.json()["error"]["message"]


async def test_text_becomes_tokens_and_tokens_text_without_an_engine(language: ModelLanguage, writer: Writer) -> None:
    async with mixed(language) as stack:
        tokens = (await stack.post("/tokenize", {"model": MODEL, "prompt": "Paris is nice 🙂"})).json()
        assert tokens["tokens"] == writer.ids("Paris is nice 🙂")
        assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), language.context_length)
        chat = (await stack.post("/tokenize", {"model": MODEL, "messages": HELLO})).json()
        assert chat["tokens"] == list(language.render_chat([{"role": "user", "content": "Hello"}]).token_ids)
        text = await stack.post("/detokenize", {"model": MODEL, "tokens": tokens["tokens"]})
        assert text.json() == {"prompt": "Paris is nice 🙂"}
        assert not stack.low.calls
        assert (await stack.post("/tokenize", {"model": "huge", "prompt": "x"})).status_code == 404
        bad = await stack.post("/detokenize", {"model": MODEL, "tokens": ["x"]})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "tokens.0")
