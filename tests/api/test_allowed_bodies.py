"""A client's own body over real sockets: to a vLLM goes what its operator allows, to any engine what can be counted."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import orjson
import pytest

from gateway.app import App, open_app
from gateway.core import Need
from gateway.routing.policies import Threshold
from gateway.settings import (
    AllowSettings,
    BackendSettings,
    ModelSettings,
    ProbeSettings,
    RelaySettings,
    Settings,
    VLLMSettings,
)
from tests.api.conftest import LIMITS, MODEL, TOKENIZER, eventually, serving
from tests.fakes.openai import Exchange, FakeOpenAI, saying, sized

CHAT = "/v1/chat/completions"
SEEN = b'{"choices":[{"message":{"content":"a cat"}}]}'
DATA, INSIDE = "data:image/png;base64,AAAA", "http://169.254.169.254/latest/meta-data"
PROBE = ProbeSettings(interval_s=0.05, down_interval_s=0.02)


def picture(url: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@dataclass(slots=True)
class Node:
    """A gateway as it is composed from settings, before engines that say what they got."""

    engines: dict[str, FakeOpenAI]
    app: App
    port: int

    async def post(self, body: Mapping[str, object], path: str = CHAT, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as client:
            return await client.post(path, json={"model": MODEL, **body}, headers=headers)

    @property
    def got(self) -> list[tuple[str, Exchange]]:
        """Every body that came to an engine; a vLLM is also asked which routes it has."""
        return [
            (name, exchange)
            for name, engine in self.engines.items()
            for exchange in engine.exchanges
            if b"/inference/" not in exchange.request_line
        ]

    @property
    def in_flight(self) -> int:
        return sum(backend.in_flight for backend in self.app.router.model_state(MODEL).backends.values())


@asynccontextmanager
async def node(*backends: BackendSettings, reads_text: bool = True) -> AsyncIterator[Node]:
    """`backends`: their URLs are put in here. `reads_text`: the model has a token lane, if a backend has."""
    async with AsyncExitStack() as opened:
        engines: dict[str, FakeOpenAI] = {}
        for backend in backends:
            engines[backend.name] = await opened.enter_async_context(FakeOpenAI(saying(sized(SEEN))).serving())
        placed = {backend.name: replace(backend, url=engines[backend.name].url) for backend in backends}
        names = [name for name, backend in placed.items() if not reads_text or isinstance(backend, VLLMSettings)]
        policy = Threshold(names[0], names[1], up=100, down=1) if len(names) > 1 else None
        model = ModelSettings(MODEL, TOKENIZER if reads_text else None, placed, policy)
        settings = Settings((model,), "127.0.0.1:0", limits=LIMITS, probe=PROBE)
        app = await opened.enter_async_context(open_app(settings))
        port = await opened.enter_async_context(serving(app))
        stack = Node(engines, app, port)
        await eventually(lambda: all(state.is_ready for state in app.router.model_state(MODEL).backends.values()))
        yield stack
        await eventually(lambda: not stack.in_flight)


VLLM, EYES = VLLMSettings("vllm", ""), RelaySettings("eyes", "")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (picture(INSIDE), "messages.0.content.0.image_url.url"),
        (picture("file:///etc/passwd"), "messages.0.content.0.image_url.url"),
        ({**picture(DATA), "chat_template": "{{ 1 }}"}, "chat_template"),
        ({**picture(DATA), "n": 100_000}, "n"),
        ({**picture(DATA), "n": "2"}, "n"),
    ],
)
async def test_what_a_vllm_may_not_get_reaches_none(body: Mapping[str, object], param: str) -> None:
    async with node(VLLM) as stack:
        answer = await stack.post(body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
        assert not stack.got
        assert (await stack.post({**body, "input": "x"}, "/v1/embeddings")).json()["error"]["param"] == param
        assert not stack.got


async def test_what_a_vllm_may_get_goes_on_as_it_came() -> None:
    async with node(VLLM) as stack:
        body = {**picture(DATA), "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
        assert (await stack.post(body)).content == SEEN
        assert (await stack.post({"input": ["x"], "dimensions": 8}, "/v1/embeddings")).content == SEEN
        assert [orjson.loads(exchange.body) for _, exchange in stack.got] == [
            {"model": MODEL, **body},
            {"model": MODEL, "input": ["x"], "dimensions": 8},
        ]


async def test_an_operator_allows_a_vllm_more() -> None:
    allow = AllowSettings(media=frozenset({"https://images.example.com"}), fields=frozenset({"mm_processor_kwargs"}))
    async with node(replace(VLLM, allow=allow)) as stack:
        body = {**picture("https://images.example.com/a.png"), "mm_processor_kwargs": {"num_crops": 4}}
        assert (await stack.post(body)).content == SEEN
        assert (await stack.post(picture(DATA))).status_code == 400  # which is not named any more
    async with node(replace(VLLM, allow=None)) as stack:
        assert (await stack.post({**picture(INSIDE), "chat_template": "x"})).content == SEEN


@pytest.mark.parametrize("reads_text", [True, False])
async def test_a_server_that_is_relayed_to_gets_what_a_vllm_beside_it_may_not(reads_text: bool) -> None:
    async with node(VLLM, EYES, reads_text=reads_text) as stack:
        for _ in range(3):
            answer = await stack.post({**picture(INSIDE), "chat_template": "x"})
            assert (answer.content, answer.headers["x-crossover-backend"]) == (SEEN, "eyes")
        assert (await stack.post(picture(INSIDE), **{"x-crossover-pin": "vllm"})).status_code == 400
        assert {name for name, _ in stack.got} == {"eyes"}
        assert (await stack.post(picture(DATA))).headers["x-crossover-backend"] == "vllm"
        # Not even when the other one is down.
        await stack.engines["eyes"].stop()
        answer = await stack.post(picture(INSIDE))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")


async def test_a_vllm_that_takes_no_bodies_bars_nobody() -> None:
    blind = replace(VLLM, capabilities={Need.RELAY: False})
    async with node(blind, EYES) as stack:
        assert (await stack.post(picture(INSIDE))).headers["x-crossover-backend"] == "eyes"


async def test_a_server_that_is_relayed_to_may_be_bound_too() -> None:
    async with node(replace(EYES, allow=AllowSettings()), reads_text=False) as stack:
        assert (await stack.post(picture(INSIDE))).json()["error"]["param"] == "messages.0.content.0.image_url.url"
        assert (await stack.post(picture(DATA))).content == SEEN


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        (CHAT, {"n": 5}, 5),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 3}, 6),
        ("/v1/completions", {"prompt": "a", "best_of": 4}, 4),
    ],
)
async def test_the_choices_of_a_body_that_goes_on_unread_count(
    path: str, body: Mapping[str, object], count: int
) -> None:
    async with node(EYES, reads_text=False) as stack:
        held = asyncio.Event()

        async def hold(exchange: Exchange) -> None:
            await held.wait()
            await exchange.say(sized(SEEN))

        stack.engines["eyes"].answer = hold
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stack.post(body, path))
            await eventually(lambda: stack.in_flight == count)
            held.set()


@pytest.mark.parametrize("backend", [VLLM, EYES])
async def test_no_engine_gets_more_choices_than_can_be_counted(backend: BackendSettings) -> None:
    async with node(backend, reads_text=isinstance(backend, VLLMSettings)) as stack:
        answer = await stack.post({**picture(DATA), "n": 100_000})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
        assert not stack.got


CREDENTIALS = {
    "authorization": "Bearer client's",
    "cookie": "session=1",
    "x-api-key": "client's",
    "api-key": "client's",
    "proxy-authorization": "Basic eDp5",
}
VLLMS = {"x-vllm-priority": "-5", "x-data-parallel-rank": "3", "x-session-id": "another's"}


@pytest.mark.parametrize("backend", [VLLM, EYES])
async def test_no_engine_gets_a_clients_keys_and_no_vllm_what_stands_for_a_field(backend: BackendSettings) -> None:
    is_vllm = isinstance(backend, VLLMSettings)
    async with node(backend, reads_text=is_vllm) as stack:
        fields = {**CREDENTIALS, **VLLMS, "x-custom": "kept"}
        assert (await stack.post({"input": "x"}, "/v1/embeddings", **fields)).content == SEEN
        ((_, exchange),) = stack.got
        got = {name.decode() for name, _ in exchange.fields}
        assert "x-custom" in got
        assert got.isdisjoint(CREDENTIALS)
        assert got & VLLMS.keys() == (set() if is_vllm else set(VLLMS))
