"""Fixtures of the parity table: stacks whose gateway is asked, and vLLM's own server."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from deploy.launch import Launched
from tests.parity.asking import TRITON, VLLM, Asker, Known


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
def known() -> Known:
    """The answers so far, so that engines are asked once for all tests."""
    return {}


@pytest.fixture
def triton(stack: Launched, session: aiohttp.ClientSession, known: Known) -> Asker:
    return Asker(session, stack.url, TRITON, known)


@pytest.fixture
def vllm(stack: Launched, session: aiohttp.ClientSession, known: Known) -> Asker:
    return Asker(session, stack.url, VLLM, known)


@pytest.fixture
def anybody(stack: Launched, session: aiohttp.ClientSession, known: Known) -> Asker:
    """Whichever engine the gateway chooses."""
    return Asker(session, stack.url, known=known)


@pytest.fixture
def gateway(cpu_stack: Launched, session: aiohttp.ClientSession, known: Known) -> Asker:
    """Before a real vLLM."""
    return Asker(session, cpu_stack.url, VLLM, known)


@pytest.fixture
def server(cpu_stack: Launched, session: aiohttp.ClientSession, known: Known) -> Asker:
    """That vLLM's own."""
    return Asker(session, str(cpu_stack.stack.backends["vllm"]["url"]), known=known, is_gateway=False)
