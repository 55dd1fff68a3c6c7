"""Fixtures for every room: the async backend, and whole stacks, started once per session and shared.

A test that changes a stack's policy puts it back; a test that needs to kill an engine starts a stack of its own.
"""

from collections.abc import Iterator

import pytest

from deploy.cpu import cpu
from deploy.embedded import embedded
from deploy.launch import LOGS, Launched, launched
from deploy.ports import find_free
from tests.crashes import cpu_stack_key


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def embedded_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The reference engine behind both wires, as fast as it can, and a gateway before them."""
    with launched(embedded(), find_free(1)[0], tmp_path_factory.mktemp("embedded"), print_ready) as running:
        yield running


@pytest.fixture(scope="session")
def cpu_stack(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Launched]:
    """A real Triton and a real vLLM with the same weights, and a gateway before them; needs `make stacks`."""
    folder = tmp_path_factory.mktemp("cpu")
    with launched(cpu(folder / LOGS), find_free(1)[0], folder, print_ready) as running:
        pytestconfig.stash[cpu_stack_key] = running
        yield running


def print_ready(name: str, seconds: float) -> None:
    print(f"{name} ready after {seconds:.1f} s")  # noqa: T201 - pytest shows it when the start fails
