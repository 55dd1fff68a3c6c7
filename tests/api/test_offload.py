"""Work off the event loop: bounded, in order, and without cost once its caller has left."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.api.offload import Offload
from gateway.errors import Overloaded
from tests.api.conftest import eventually


class Gate:
    """Work that says when it has begun and lasts until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open = threading.Event()

    def work(self, name: str) -> str:
        self.begun.append(name)
        assert self._open.wait(20)
        return name

    def let_go(self) -> None:
        self._open.set()


@asynccontextmanager
async def gate() -> AsyncIterator[Gate]:
    """A gate that no failing test leaves closed, for its threads would outlive it."""
    gate = Gate()
    try:
        yield gate
    finally:
        gate.let_go()


def fail() -> None:
    raise ValueError("of its own")


async def test_result_and_error_are_those_of_the_work() -> None:
    offload = Offload()
    assert await offload.run(max, 1, 2) == 2
    assert await offload.run(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ValueError, match="of its own"):
        await offload.run(fail)
    assert await offload.run(threading.get_ident) != threading.get_ident()
    await eventually(lambda: repr(offload) == "<Offload 0 working, 0 waiting>")


async def test_no_more_is_worked_on_than_there_are_threads_and_the_first_to_come_is_the_first() -> None:
    offload = Offload(threads=2, most_waiting=10)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(offload.run(held.work, str(number))) for number in range(6)]
        await eventually(lambda: repr(offload) == "<Offload 2 working, 4 waiting>" and len(held.begun) == 2)
        held.let_go()
        assert await asyncio.gather(*runs) == list("012345")
        assert sorted(held.begun[:2]) == ["0", "1"]
        assert sorted(held.begun[2:4]) == ["2", "3"]


async def test_one_too_many_is_refused_at_once_and_the_others_are_not_disturbed() -> None:
    offload = Offload(threads=1, most_waiting=2)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(offload.run(held.work, str(number))) for number in range(3)]
        await eventually(lambda: offload.waiting == 2)
        with pytest.raises(Overloaded):
            await offload.run(held.work, "one too many")
        held.let_go()
        assert await asyncio.gather(*runs) == list("012")
    assert await offload.run(max, 1, 2) == 2
    assert "one too many" not in held.begun


async def test_nobody_need_wait_where_waiting_is_not_allowed() -> None:
    offload = Offload(threads=1, most_waiting=0)
    assert await offload.run(max, 1, 2) == 2
    await eventually(lambda: offload.working == 0)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        tasks.create_task(offload.run(held.work, "only"))
        await eventually(lambda: held.begun == ["only"])
        with pytest.raises(Overloaded):
            await offload.run(max, 1, 2)
        held.let_go()


async def test_caller_that_leaves_while_it_waits_costs_nothing() -> None:
    offload = Offload(threads=1, most_waiting=1)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(offload.run(held.work, "first"))
        await eventually(lambda: offload.working == 1)
        for _ in range(3):
            leaver = tasks.create_task(offload.run(held.work, "left"))
            await eventually(lambda: offload.waiting == 1)
            leaver.cancel()
            await eventually(lambda: offload.waiting == 0)
        assert offload._pool._work_queue.qsize() == 0  # nor are its arguments kept
        held.let_go()
        assert await first == "first"
    assert await offload.run(max, 1, 2) == 2
    assert held.begun == ["first"]


async def test_place_of_a_caller_that_leaves_is_free_only_when_its_thread_is() -> None:
    offload = Offload(threads=1, most_waiting=1)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        leaver = tasks.create_task(offload.run(held.work, "left"))
        await eventually(lambda: held.begun == ["left"])
        leaver.cancel()
        follower = tasks.create_task(offload.run(held.work, "follower"))
        await eventually(lambda: leaver.done() and offload.waiting == 1)
        assert repr(offload) == "<Offload 1 working, 1 waiting>"
        held.let_go()
        assert await follower == "follower"
        await eventually(lambda: offload.working == 0)


async def test_callers_that_leave_at_any_moment_lose_no_place() -> None:
    offload = Offload(threads=2, most_waiting=100)
    for turns in range(12):
        async with asyncio.TaskGroup() as tasks:
            leavers = [tasks.create_task(offload.run(sum, range(1000))) for _ in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for leaver in leavers[::2]:
                leaver.cancel()
    await eventually(lambda: repr(offload) == "<Offload 0 working, 0 waiting>")
    assert offload._free._value == 2


def test_loop_may_end_before_the_work_does() -> None:
    offload = Offload(threads=1)
    held = Gate()

    async def leave() -> None:
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(offload.run(held.work, "left"))
            await eventually(lambda: held.begun == ["left"])
            run.cancel()

    asyncio.run(leave())
    held.let_go()
    offload._pool.shutdown(wait=True)
