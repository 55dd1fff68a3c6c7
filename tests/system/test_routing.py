"""Requests follow the load: low load to one engine, high load to the other, once across and once back."""

import asyncio
import itertools

import pytest

from tests.system.site import Site


@pytest.mark.timeout(120)
async def test_load_that_rises_and_falls_switches_once_each_way(paced: Site) -> None:
    await paced.set_policy(up=40, down=30, dwell_s=0.2)
    assert (await paced.ask(1)).backend == "triton"  # wherever an earlier test left the side, it is low now
    switches = (await paced.state())["switches"]
    seen: list[str | None] = []

    async def probe_until(crowd_is_over: asyncio.Event) -> None:
        while not crowd_is_over.is_set():
            seen.append((await paced.ask(1)).backend)

    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(probe_until(over))
        crowd = []
        for number in range(60):  # up to 60 held at once, then down again as the ever longer answers end
            crowd.append(group.create_task(paced.ask(60 + 2 * number)))
            await asyncio.sleep(0.03)
        answers = [await task for task in crowd]
        over.set()
    assert all(answer.is_whole for answer in answers)
    assert [backend for backend, _ in itertools.groupby(seen)] == ["triton", "vllm", "triton"]
    assert (await paced.state())["switches"] == switches + 2
