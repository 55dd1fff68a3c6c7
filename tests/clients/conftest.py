"""Every official client before every engine: the embedded pair, and the real Triton and vLLM."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import TypeAlias

import pytest

from deploy.launch import Launched
from tests.clients.node_client import NodeClient, node
from tests.clients.openai_client import OpenAIClient
from tests.clients.question import Client, Place
from tests.workers import ON_CPU_STACK

Connect: TypeAlias = Callable[[Place], Client]


@pytest.fixture(scope="session", params=["embedded", pytest.param("cpu", marks=ON_CPU_STACK)])
def stack(request: pytest.FixtureRequest) -> Launched:
    launched: Launched = request.getfixturevalue(f"{request.param}_stack")
    return launched


@pytest.fixture(scope="session", params=["triton", "vllm"])
def place(stack: Launched, request: pytest.FixtureRequest) -> Place:
    return Place(stack.url, request.param)


@pytest.fixture(scope="session")
def node_clients() -> Iterator[Callable[[str], Connect]]:
    """Each Node program starts once, when it is first needed."""
    with ExitStack() as exits:

        @cache
        def connect(program: str) -> Connect:
            running = exits.enter_context(node(program))
            return lambda place: NodeClient(running, place)

        yield connect


@pytest.fixture(scope="session", params=["openai-python", "langchain", "openai-node", "ai-sdk"])
def connect(request: pytest.FixtureRequest, node_clients: Callable[[str], Connect]) -> Connect:
    match request.param:
        case "openai-python":
            return OpenAIClient
        case "langchain":
            # Its import takes over a second, which every worker would spend on collecting the tests.
            from tests.clients.langchain_client import LangChainClient  # noqa: PLC0415

            return LangChainClient
        case program:
            return node_clients(program)


@pytest.fixture
def client(connect: Connect, place: Place) -> Iterator[Client]:
    client = connect(place)
    yield client
    client.close()
