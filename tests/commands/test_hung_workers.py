"""A worker whose event loop stands still, as SIGSTOP makes it: it is killed and replaced, and only then."""

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.commands.test_workers import in_flight, opened, state, until, workers_of
from tests.processes import find_parent, is_running
from tests.serving.stack import eventually


async def test_a_stopped_worker_is_replaced_and_its_leases_are_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        survivor, victim = await site.connect_to_each()
        for client in (survivor, victim):
            site.ask(client)
        await site.all_arrived()
        asker = survivor
        while asker is survivor or (await state(asker))["answered_by"] != 0:
            asker = await site.connect()
        before = (await state(asker))["workers"]
        os.kill(before[1]["pid"], signal.SIGSTOP)
        stopped = time.monotonic()

        async def is_replaced() -> bool:
            workers = (await state(asker))["workers"]
            return len(workers) == 2 and workers[1]["pid"] != before[1]["pid"]

        await until(is_replaced)
        assert time.monotonic() - stopped < 8
        assert await in_flight(asker) == 1
        assert not is_running(before[1]["pid"])
        site.gateway.process.terminate()
        site.release_all()
        await survivor.until(b"data: [DONE]")
        code, log = await site.gateway.end()
        assert code == 0
        assert f"(pid {before[1]['pid']}) has hung for 5" in log


async def test_neither_three_seconds_nor_a_machine_that_stood_still_are_a_hung_worker(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        pids = [worker["pid"] for worker in await workers_of(site)]
        everyone = [find_parent(pids[0]), *pids]
        for stopped, seconds in ((pids[:1], 3.0), (everyone, 6.0)):
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.5)
        assert [worker["pid"] for worker in await workers_of(site)] == pids


async def test_a_worker_that_drains_is_not_hung(tmp_path: Path) -> None:
    """A signal that was meant for the gateway reaches the worker alone: it drains for longer than it may be silent."""
    async with opened(tmp_path) as site:
        client = (await site.connect_to_each())[1]
        site.ask(client)
        await site.all_arrived()
        pid = (await workers_of(site))[1]["pid"]
        os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(6.0)
        assert is_running(pid)
        site.release_all()  # the answer has left an engine that was silent for so long
        await client.until(b"data: [DONE]")
        await eventually(lambda: not is_running(pid))
