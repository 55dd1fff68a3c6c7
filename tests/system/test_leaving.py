"""Clients that leave: everything they held, in the gateway and in both engines, is free within a second."""

import asyncio
from pathlib import Path

import pytest

from tests.system.site import Site, StreamedAnswer, becomes, pid_of

PINS = ("triton", "vllm")
NOTHING = {"triton": 0.0, "vllm": 0.0}


async def leave_mid_stream(site: Site, pin: str) -> None:
    answer = StreamedAnswer()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(site.ask(200, answer, pin))
        await answer.began.wait()
        asking.cancel()


@pytest.fixture
async def site(paced: Site) -> Site:
    """The paced stack at rest."""
    await becomes(paced.engine_requests, NOTHING, within_s=5)
    return paced


def open_sockets(pid: int) -> int:
    """Sockets that the process holds."""
    sockets = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:  # it was closed in between
            continue
    return sockets


async def test_clients_that_leave_free_both_engines_and_leave_no_sockets(site: Site) -> None:
    pid = pid_of(site.stack, "gateway")

    async def rush() -> int:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(leave_mid_stream(site, PINS[number % 2]))
        await becomes(site.in_flight, 0, within_s=1)
        await becomes(site.engine_requests, NOTHING, within_s=1)
        return open_sockets(pid)

    first = await rush()
    assert max([await rush() for _ in range(3)]) <= first + 4
