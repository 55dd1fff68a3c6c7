"""The composition root and its lifespan, without a server: ASGI messages in, ASGI messages out."""

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from gateway.app import Gateway, open_app
from gateway.node import Node
from gateway.routing.policies import Threshold
from gateway.settings import ModelSettings, ProbeSettings, Settings, TritonSettings, VLLMSettings
from tests.fakes.script import EndToken, Say
from tests.fakes.vllm import FakeVLLM
from tests.serving.stack import HELLO, MODEL, TOKENIZER, Writer, live_tasks

Message: TypeAlias = MutableMapping[str, Any]  # Any: ASGI's own type

SETTINGS = Settings(
    listen="127.0.0.1:0",
    models=(
        ModelSettings(
            id=MODEL,
            tokenizer=TOKENIZER,
            # Port 1 is closed: engines that are down are no reason not to start.
            backends={
                "triton": TritonSettings("triton", "grpc://127.0.0.1:1", connect_timeout_s=0.5),
                "vllm": VLLMSettings("vllm", "http://127.0.0.1:1", connect_timeout_s=0.5),
            },
            policy=Threshold(low="triton", high="vllm", up=4, down=2),
        ),
    ),
    probe=ProbeSettings(),
)


class Lifespan:
    """The server's side of the lifespan protocol."""

    def __init__(self, app: Gateway) -> None:
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()

    async def run(self) -> None:
        await self._app({"type": "lifespan"}, self._to_app.get, self.sent.put)

    async def ask(self, kind: str) -> Message:
        await self._to_app.put({"type": f"lifespan.{kind}"})
        return await self.sent.get()


async def test_a_gateway_starts_with_its_engines_down_and_leaves_nothing_behind() -> None:
    before = live_tasks()
    async with open_app(SETTINGS) as app:
        backends = app.router.model_state(MODEL).backends
        assert {name: backend.is_ready for name, backend in backends.items()} == {"triton": False, "vllm": False}
    assert live_tasks() == before


CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("parsers", "message"),
    [
        ({}, {"content": "<think>Hm.</think>[TOOL_CALLS]f[ARGS]{}"}),
        ({"reasoning_parser": "think"}, {"content": "[TOOL_CALLS]f[ARGS]{}", "reasoning": "Hm."}),
        (
            {"reasoning_parser": "think", "tool_parser": "mistral", "reasoning_field": "reasoning_content"},
            {"content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
        ),
    ],
)
async def test_the_configuration_names_the_parsers_of_calls_and_reasoning(
    writer: Writer, parsers: Mapping[str, Any], message: Mapping[str, object]
) -> None:
    ids = writer.ids("<think>Hm.</think>[TOOL_CALLS]f[ARGS]{}")
    async with FakeVLLM().serving() as engine:
        engine.play(Say(tuple(ids)), EndToken())
        backends = {"vllm": VLLMSettings("vllm", f"http://127.0.0.1:{engine.port}")}
        model = replace(SETTINGS.models[0], backends=backends, policy=None, **parsers)
        body = {"model": MODEL, "messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}
        async with (
            open_app(replace(SETTINGS, models=(model,))) as app,
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
        ):
            answer = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    for call in answer.get("tool_calls", ()):
        assert call.pop("id")
    assert answer == {"role": "assistant", "refusal": None, **message}


async def test_the_lifespan_protocol_starts_and_stops_the_gateway() -> None:
    lifespan = Lifespan(Gateway(SETTINGS))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lifespan.run())
        assert await lifespan.ask("startup") == {"type": "lifespan.startup.complete"}
        assert await lifespan.ask("shutdown") == {"type": "lifespan.shutdown.complete"}


async def test_a_start_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    model = replace(SETTINGS.models[0], tokenizer=tmp_path)
    lifespan = Lifespan(Gateway(replace(SETTINGS, models=(model,))))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lifespan.run())
        answer = await lifespan.ask("startup")
    assert answer["type"] == "lifespan.startup.failed"
    assert str(tmp_path) in answer["message"]
    assert "\n" not in answer["message"]


async def test_a_request_before_the_start_raises() -> None:
    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    with pytest.raises(RuntimeError, match="before"):
        await Gateway(SETTINGS)({"type": "http", "path": "/v1/models"}, receive, send)


def test_workers_of_one_node_have_one_salt_and_another_node_has_another() -> None:
    settings = replace(SETTINGS, workers=2)
    node = Node.create(settings)
    assert node.fd is not None
    workers = [Node.join(settings, index, node.fd) for index in range(2)]
    assert {worker.salt for worker in workers} == {node.salt}
    assert len({node.salt, Node.create(settings).salt, Node.alone(settings).salt, bytes(16)}) == 4
