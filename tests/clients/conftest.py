"""Every official client before the embedded engines, and one of each wire before the real Triton and vLLM."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import TypeAlias

import pytest

from deploy.launch import Launched
from tests.clients.anthropic_client import AnthropicClient
from tests.clients.node_client import NodeClient, node
from tests.clients.openai_client import OpenAIClient
from tests.clients.question import CHAT, MESSAGES, RESPONSES, Client, Place
from tests.clients.responses_client import ResponsesClient
from tests.workers import ON_CPU_STACK

Connect: TypeAlias = Callable[[Place], Client]


PYTHON = ("openai-python", "openai-python-responses", "anthropic-python", "langchain")
NODE = {
    "openai-node": CHAT,
    "openai-node-responses": RESPONSES,
    "anthropic-node": MESSAGES,
    "ai-sdk": CHAT,
    "ai-sdk-openai": RESPONSES,
    "ai-sdk-anthropic": MESSAGES,
}
CLIENTS = (*PYTHON, *NODE)
ON_REAL_ENGINES = PYTHON[:3]  # one of each wire


def marks(is_usual: bool) -> list[pytest.MarkDecorator]:
    """Returns the marks of one client's tests before the real engines; `make slow` has those of the others."""
    return [*ON_CPU_STACK] if is_usual else [*ON_CPU_STACK, pytest.mark.slow]


# What a client gets depends on the gateway alone; that the engines behind it answer alike is shown in tests/parity.
PLACES = [
    *(
        pytest.param((client, "embedded", pin), id=f"{client} embedded {pin}")
        for client in CLIENTS
        for pin in ("triton", "vllm")
    ),
    *(
        pytest.param((client, "cpu", pin), marks=marks(client in ON_REAL_ENGINES), id=f"{client} real {pin}")
        for client in CLIENTS
        for pin in ("triton", "vllm")
    ),
]


@pytest.fixture(scope="session")
def find_client() -> Iterator[Callable[[str], Connect]]:
    """By name. Each Node program starts once, when it is first needed."""
    with ExitStack() as exits:

        @cache
        def find(name: str) -> Connect:
            match name:
                case "openai-python":
                    return OpenAIClient
                case "openai-python-responses":
                    return ResponsesClient
                case "anthropic-python":
                    return AnthropicClient
                case "langchain":
                    # Its import takes over a second, which every worker would spend on collecting the tests.
                    from tests.clients.langchain_client import LangChainClient  # noqa: PLC0415

                    return LangChainClient
                case program:
                    running = exits.enter_context(node(program))
                    return lambda place: NodeClient(running, place, NODE[program])

        yield find


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest, find_client: Callable[[str], Connect]) -> Connect:
    return find_client(request.param)


@pytest.fixture(params=PLACES)
def client(request: pytest.FixtureRequest, find_client: Callable[[str], Connect]) -> Iterator[Client]:
    name, stack, pin = request.param
    launched: Launched = request.getfixturevalue(f"{stack}_stack")
    client = find_client(name)(Place(launched.url, pin))
    yield client
    client.close()
