"""Fixtures of the parity table: stacks whose gateway is asked, and vLLM's own server."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from deploy.launch import Launched
from tests.parity.asking import TRITON, VLLM, Asker, Heard


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Launched:
    """By the name it is asked for."""
    running: Launched = request.getfixturevalue(f"{request.param}_stack")
    return running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture(scope="session")
def heard() -> Heard:
    """What has been answered already, so that engines are asked once for all tests."""
    return {}


@pytest.fixture
def triton(stack: Launched, session: aiohttp.ClientSession, heard: Heard) -> Asker:
    return Asker(session, stack.url, TRITON, heard)


@pytest.fixture
def vllm(stack: Launched, session: aiohttp.ClientSession, heard: Heard) -> Asker:
    return Asker(session, stack.url, VLLM, heard)


@pytest.fixture
def anybody(stack: Launched, session: aiohttp.ClientSession, heard: Heard) -> Asker:
    """Whichever engine the gateway chooses."""
    return Asker(session, stack.url, heard=heard)


@pytest.fixture
def gateway(cpu_stack: Launched, session: aiohttp.ClientSession, heard: Heard) -> Asker:
    """Before a real vLLM."""
    return Asker(session, cpu_stack.url, VLLM, heard)


@pytest.fixture
def server(cpu_stack: Launched, session: aiohttp.ClientSession, heard: Heard) -> Asker:
    """That vLLM's own."""
    return Asker(session, str(cpu_stack.stack.backends["vllm"]["url"]), heard=heard)
