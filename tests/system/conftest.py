"""Fixtures for whole-system tests: paced stacks, and seen by a client and by an operator."""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from deploy.cpu import cpu
from deploy.embedded import Pace, embedded
from deploy.launch import LOGS, Launched, launched
from deploy.ports import find_free
from tests.system.site import Site


@pytest.fixture(scope="session")
def paced_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The embedded pair at a pace at which 32 tokens take one to three seconds, so that requests stay in flight."""
    port, folder = find_free(1)[0], tmp_path_factory.mktemp("paced")
    with launched(embedded(Pace(10.0, 32)), port, folder, lambda *_: None) as running:
        yield running


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A stack whose engines a module's tests may kill, if they bring them back; first tokens take 0.14 s or more."""
    port, folder = find_free(1)[0], tmp_path_factory.mktemp("own")
    with launched(embedded(Pace(40.0, 32)), port, folder, lambda *_: None) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
async def paced(paced_stack: Launched, session: aiohttp.ClientSession) -> AsyncIterator[Site]:
    site = Site(paced_stack, session)
    async with site.policy_put_back():
        yield site


@pytest.fixture(scope="module")
def own_real_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A real Triton and a real vLLM to kill."""
    folder = tmp_path_factory.mktemp("real")
    with launched(cpu(folder / LOGS), find_free(1)[0], folder, lambda *_: None) as running:
        yield running


@pytest.fixture(params=["own_stack", pytest.param("own_real_stack", marks=[pytest.mark.stack, pytest.mark.slow])])
async def own(request: pytest.FixtureRequest, session: aiohttp.ClientSession) -> Site:
    return Site(request.getfixturevalue(request.param), session)
