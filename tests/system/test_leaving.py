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


async def leave_before_the_first_token(site: Site, clients: int) -> None:
    """They leave as soon as the gateway has all of them, which is before a busy engine's first token."""
    others = await site.in_flight()
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(site.ask(200, pin=PINS[number % 2])) for number in range(clients)]
        await becomes(site.in_flight, others + clients, within_s=5)
        for task in asking:
            task.cancel()


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


@pytest.mark.timeout(120)
async def test_two_hundred_streams_of_which_forty_leave_free_everything_within_a_second(site: Site) -> None:
    tasks_before, left_before = await site.gateway_metric("crossover_tasks"), await site.ended("cancelled")
    async with asyncio.TaskGroup() as group:
        staying = [group.create_task(site.ask(80, pin=PINS[number % 2])) for number in range(160)]
        await becomes(site.in_flight, 160, within_s=3)
        await leave_before_the_first_token(site, 20)
        for number in range(20):
            group.create_task(leave_mid_stream(site, PINS[number % 2]))
    await becomes(site.engine_requests, NOTHING, within_s=1)
    await becomes(site.in_flight, 0, within_s=1)
    assert all(task.result().is_whole and task.result().completion_tokens == 80 for task in staying)
    assert await site.ended("cancelled") - left_before == 40
    # The scrape itself is a request too, before and after.
    await becomes(lambda: site.gateway_metric("crossover_tasks"), tasks_before, within_s=1)


async def test_sockets_do_not_pile_up(site: Site) -> None:
    pid = pid_of(site.stack, "gateway")

    async def rush() -> int:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(leave_mid_stream(site, PINS[number % 2]))
        await becomes(site.in_flight, 0, within_s=1)
        return open_sockets(pid)

    first = await rush()
    assert max([await rush() for _ in range(3)]) <= first + 4
