"""A client's own body over real sockets: which engine gets it, and what of it; and what is not relayed."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import orjson
import pytest

from gateway.app import open_app
from gateway.core import Need
from gateway.language import ModelLanguage
from gateway.routing.policies import Threshold
from gateway.settings import (
    AllowSettings,
    BackendSettings,
    ModelSettings,
    ProbeSettings,
    QueueSettings,
    RelaySettings,
    Settings,
    VLLMSettings,
)
from tests.fakes.openai import Exchange, FakeOpenAI, saying, sized
from tests.serving.stack import HELLO, LIMITS, MODEL, TOKENIZER, ServedApp, Writer, eventually, serving

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SEEN = b'{"choices":[{"message":{"content":"a cat"}}]}'
DATA, INSIDE = "data:image/png;base64,AAAA", "http://169.254.169.254/latest/meta-data"
PROBE = ProbeSettings(interval_s=0.05, down_interval_s=0.02)
VLLM, RELAY = VLLMSettings("vllm", ""), RelaySettings("relay", "")
TOKENS = replace(VLLM, capabilities={Need.RELAY: False})  # takes no bodies


def picture(url: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@dataclass(slots=True)
class Node(ServedApp):
    """A gateway as it is composed from settings, before engines that record what they got."""

    engines: dict[str, FakeOpenAI]

    async def post(self, path: str, body: Mapping[str, object], **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url) as client:
            return await client.post(path, json={"model": MODEL, **body}, headers=headers)

    async def chat(self, body: Mapping[str, object], pin: str | None = None) -> tuple[bytes, str]:
        """Of an answer with 200, the body and the backend."""
        answer = await self.post(CHAT, body, **({} if pin is None else {"x-crossover-pin": pin}))
        assert answer.status_code == 200, answer.text
        return answer.content, answer.headers["x-crossover-backend"]

    async def refuse(self, path: str, body: Mapping[str, object], **headers: str) -> str:
        """Of a refusal with 400, the field that is named."""
        answer = await self.post(path, body, **headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_value")
        return str(error["param"])

    @property
    def got(self) -> list[tuple[str, Exchange]]:
        """Every body that came to an engine; a vLLM is also asked which routes it has."""
        return [
            (name, exchange)
            for name, engine in self.engines.items()
            for exchange in engine.exchanges
            if b"/inference/" not in exchange.request_line
        ]


@asynccontextmanager
async def node(
    *backends: BackendSettings, reads_text: bool = True, relay_paths: frozenset[str] | None = None
) -> AsyncIterator[Node]:
    """`backends`: their URLs are put in here. `reads_text`: the model has a token lane, if a backend has.

    `relay_paths`: the model's own; then there is another model, with those of the default.
    """
    async with AsyncExitStack() as opened:
        engines: dict[str, FakeOpenAI] = {}
        for backend in backends:
            engines[backend.name] = await opened.enter_async_context(FakeOpenAI(saying(sized(SEEN))).serving())
        placed = {backend.name: replace(backend, url=engines[backend.name].url) for backend in backends}
        names = [name for name, backend in placed.items() if not reads_text or isinstance(backend, VLLMSettings)]
        policy = Threshold(names[0], names[1], up=100, down=1) if len(names) > 1 else None
        model = ModelSettings(
            MODEL, TOKENIZER if reads_text else None, placed, policy, queue=QueueSettings(max_wait_s=0, max_outage_s=0)
        )
        models = (model,) if relay_paths is None else (replace(model, relay_paths=relay_paths), replace(model, id="b"))
        app = await opened.enter_async_context(open_app(Settings(models, "127.0.0.1:0", limits=LIMITS, probe=PROBE)))
        server = await opened.enter_async_context(serving(app))
        stack = Node(engines, app=app, port=server.port)
        await eventually(lambda: all(map(stack.is_ready, engines)))
        yield stack
        await eventually(lambda: not any(stack.in_flight.values()))


# Which engine gets a body.


async def test_what_only_a_relayed_engine_can_answer_goes_on_as_it_came() -> None:
    async with node(TOKENS, RELAY) as stack:
        body = {**picture(INSIDE), "vendor_field": 1}
        answer = await stack.post(CHAT, body)
        assert (answer.content, answer.headers["x-crossover-backend"]) == (SEEN, "relay")
        assert answer.headers["x-crossover-reason"].startswith("needs=relay ")
        ((_, exchange),) = stack.got
        assert orjson.loads(exchange.body) == {"model": MODEL, **body}
        answer = await stack.post(EMBEDDINGS, {"input": "Hello"})
        assert (answer.content, answer.headers["x-crossover-backend"]) == (SEEN, "relay")
        assert (await stack.post("/v1/rerank", {})).status_code == 404


async def test_a_body_is_json_to_an_engine_whatever_its_client_calls_it() -> None:
    async with node(TOKENS, RELAY) as stack, httpx.AsyncClient(base_url=stack.url) as client:
        body = orjson.dumps({"model": MODEL, **picture(DATA)}, option=orjson.OPT_INDENT_2)
        assert (await client.post(CHAT, content=body, headers={"content-type": "text/plain"})).content == SEEN
        ((_, exchange),) = stack.got
        assert (exchange.body, exchange.field(b"content-type")) == (body, [b"application/json"])


async def test_a_picture_that_no_engine_can_see_is_refused_by_its_place() -> None:
    async with node(TOKENS) as stack:
        assert await stack.refuse(CHAT, picture(DATA)) == "messages.0.content.0.type"
    async with node(TOKENS, RELAY) as stack:
        pinned = await stack.post(CHAT, picture(DATA), **{"x-crossover-pin": "vllm"})
        assert (pinned.status_code, "vllm" in pinned.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(("engines", "paths"), [((TOKENS,), None), ((TOKENS, RELAY), frozenset[str]())])
async def test_a_path_that_no_engine_of_the_model_or_not_the_model_takes_is_refused(
    engines: tuple[BackendSettings, ...], paths: frozenset[str] | None
) -> None:
    async with node(*engines, relay_paths=paths) as stack:
        assert await stack.refuse(EMBEDDINGS, {"input": "Hello"}) == "model"
        assert not stack.got


async def test_text_is_not_relayed_but_by_a_pin() -> None:
    async with node(TOKENS, RELAY) as stack:
        assert await stack.chat({"messages": HELLO}, pin="relay") == (SEEN, "relay")
        assert await stack.refuse(CHAT, {"messages": HELLO}, **{"x-crossover-pin": "nobody"}) == "x-crossover-pin"
        stack.engines["vllm"].health = 503
        await eventually(lambda: not stack.is_ready("vllm"))
        assert (await stack.post(CHAT, {"messages": HELLO})).status_code == 503
        assert len(stack.got) == 1


async def test_text_becomes_tokens_and_tokens_text_without_an_engine(language: ModelLanguage, writer: Writer) -> None:
    async with node(TOKENS, RELAY) as stack:
        tokens = (await stack.post("/tokenize", {"prompt": "Paris is nice 🙂"})).json()
        assert tokens["tokens"] == writer.ids("Paris is nice 🙂")
        assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), language.context_length)
        assert (await stack.post("/detokenize", tokens)).json()["error"]["param"] == "count"
        text = await stack.post("/detokenize", {"tokens": tokens["tokens"]})
        assert text.json() == {"prompt": "Paris is nice 🙂"}
        assert (await stack.post("/tokenize", {"model": "huge", "prompt": "x"})).status_code == 404
        assert not stack.got


# What of a body goes on.


@pytest.mark.parametrize(
    ("body", "param"),
    [(picture(INSIDE), "messages.0.content.0.image_url.url"), ({**picture(DATA), "n": 100_000}, "n")],
)
async def test_what_a_vllm_may_not_get_reaches_none(body: Mapping[str, object], param: str) -> None:
    async with node(VLLM) as stack:
        assert await stack.refuse(CHAT, body) == param
        assert await stack.refuse(EMBEDDINGS, {**body, "input": "x"}) == param
        assert not stack.got


async def test_what_a_vllm_may_get_goes_on_as_it_came() -> None:
    async with node(VLLM) as stack:
        body = {**picture(DATA), "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
        assert await stack.chat(body) == (SEEN, "vllm")
        assert (await stack.post(EMBEDDINGS, {"input": ["x"], "dimensions": 8})).content == SEEN
        assert [orjson.loads(exchange.body) for _, exchange in stack.got] == [
            {"model": MODEL, **body},
            {"model": MODEL, "input": ["x"], "dimensions": 8},
        ]


async def test_an_operator_allows_a_vllm_more() -> None:
    allow = AllowSettings(media=frozenset({"https://images.example.com"}), fields=frozenset({"mm_processor_kwargs"}))
    async with node(replace(VLLM, allow=allow)) as stack:
        body = {**picture("https://images.example.com/a.png"), "mm_processor_kwargs": {"num_crops": 4}}
        assert await stack.chat(body) == (SEEN, "vllm")
        await stack.refuse(CHAT, picture(DATA))  # which is not named any more
    async with node(replace(VLLM, allow=None)) as stack:
        assert await stack.chat({**picture(INSIDE), "chat_template": "x"}) == (SEEN, "vllm")


@pytest.mark.parametrize("reads_text", [True, False])
async def test_a_server_that_is_relayed_to_gets_what_a_vllm_beside_it_may_not(reads_text: bool) -> None:
    async with node(VLLM, RELAY, reads_text=reads_text) as stack:
        for _ in range(3):
            assert await stack.chat({**picture(INSIDE), "chat_template": "x"}) == (SEEN, "relay")
        await stack.refuse(CHAT, picture(INSIDE), **{"x-crossover-pin": "vllm"})
        assert {name for name, _ in stack.got} == {"relay"}
        assert await stack.chat(picture(DATA)) == (SEEN, "vllm")
        # Not even when the other one is down.
        await stack.engines["relay"].stop()
        answer = await stack.post(CHAT, picture(INSIDE))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")


async def test_the_choices_of_a_body_that_goes_on_unread_count() -> None:
    async with node(RELAY, reads_text=False) as stack:
        held = asyncio.Event()

        async def hold(exchange: Exchange) -> None:
            await held.wait()
            await exchange.say(sized(SEEN))

        stack.engines["relay"].answer = hold
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stack.post(TEXT, {"prompt": ["a", "b"], "n": 3}))
            await eventually(lambda: stack.in_flight == {"relay": 6})
            held.set()


CREDENTIALS = {
    "authorization": "Bearer client's",
    "cookie": "session=1",
    "x-api-key": "client's",
    "api-key": "client's",
    "proxy-authorization": "Basic eDp5",
}
VLLMS = {"x-vllm-priority": "-5", "x-data-parallel-rank": "3", "x-session-id": "another's"}


@pytest.mark.parametrize("backend", [VLLM, RELAY])
async def test_no_engine_gets_a_clients_keys_and_no_vllm_what_stands_for_a_field(backend: BackendSettings) -> None:
    is_vllm = isinstance(backend, VLLMSettings)
    async with node(backend, reads_text=is_vllm) as stack:
        fields = {**CREDENTIALS, **VLLMS, "x-custom": "kept"}
        assert (await stack.post(EMBEDDINGS, {"input": "x"}, **fields)).content == SEEN
        ((_, exchange),) = stack.got
        got = {name.decode() for name, _ in exchange.fields}
        assert "x-custom" in got
        assert got.isdisjoint(CREDENTIALS)
        assert got & VLLMS.keys() == (set() if is_vllm else set(VLLMS))
