"""Work off the event loop: bounded, shared among clients, and without cost once its caller has left."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest

from gateway.errors import Overloaded
from gateway.language import ModelLanguage
from gateway.serving.endpoints import INLINE_BODY_BYTES
from gateway.serving.offload import LONG_UNITS, Offload, Share, count_units
from gateway.settings import LimitSettings
from tests.serving.stack import MODEL, eventually, make_stack, raw_client, running

ONE = Share("192.0.2.1")


class Gate:
    """Work that records that it has begun, and lasts until it is let go."""

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


class Body:
    pass


def fail(_: Body | None = None) -> None:
    raise ValueError("of its own")


async def test_result_and_error_are_those_of_the_work() -> None:
    offload = Offload()
    assert await offload.run(ONE, max, 1, 2) == 2
    assert await offload.run(ONE, sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ValueError, match="of its own"):
        await offload.run(ONE, fail)
    assert await offload.run(ONE, threading.get_ident) != threading.get_ident()
    await eventually(lambda: repr(offload) == "<Offload 0 working, 0 waiting>")


async def test_a_body_is_freed_with_the_error_that_it_ended_in() -> None:
    offload = Offload()
    body = Body()
    there = weakref.ref(body)
    gc.collect()
    gc.disable()
    try:
        try:
            await offload.run(ONE, fail, body)
        except ValueError:
            del body
        await eventually(lambda: there() is None)
    finally:
        gc.enable()


async def test_no_more_is_worked_on_than_there_are_threads_and_a_clients_first_to_come_is_its_first() -> None:
    offload = Offload(threads=2, max_waiting=10)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(offload.run(ONE, held.work, str(number))) for number in range(6)]
        await eventually(lambda: repr(offload) == "<Offload 2 working, 4 waiting>" and len(held.begun) == 2)
        held.let_go()
        assert await asyncio.gather(*runs) == list("012345")
        assert sorted(held.begun[:2]) == ["0", "1"]
        assert sorted(held.begun[2:4]) == ["2", "3"]


async def test_one_too_many_is_refused_at_once_and_the_others_are_not_disturbed() -> None:
    offload = Offload(threads=1, max_waiting=2)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(offload.run(ONE, held.work, str(number))) for number in range(3)]
        await eventually(lambda: offload.waiting == 2)
        with pytest.raises(Overloaded):
            await offload.run(ONE, held.work, "one too many")
        held.let_go()
        assert await asyncio.gather(*runs) == list("012")
    assert await offload.run(ONE, max, 1, 2) == 2
    assert "one too many" not in held.begun


async def test_without_places_to_wait_only_free_threads_take_work() -> None:
    offload = Offload(threads=1, max_waiting=0)
    assert await offload.run(ONE, max, 1, 2) == 2
    await eventually(lambda: offload.working == 0)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        tasks.create_task(offload.run(ONE, held.work, "only"))
        await eventually(lambda: held.begun == ["only"])
        with pytest.raises(Overloaded):
            await offload.run(ONE, max, 1, 2)
        held.let_go()


async def test_caller_that_leaves_while_it_waits_costs_nothing() -> None:
    offload = Offload(threads=1, max_waiting=1)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(offload.run(ONE, held.work, "first"))
        await eventually(lambda: offload.working == 1)
        for _ in range(3):
            leaver = tasks.create_task(offload.run(ONE, held.work, "left"))
            await eventually(lambda: offload.waiting == 1)
            leaver.cancel()
            await eventually(lambda: offload.waiting == 0)
        assert offload._pool._work_queue.qsize() == 0  # nor are its arguments kept
        held.let_go()
        assert await first == "first"
    assert await offload.run(ONE, max, 1, 2) == 2
    assert held.begun == ["first"]


async def test_place_of_a_caller_that_leaves_is_free_only_when_its_thread_is() -> None:
    offload = Offload(threads=1, max_waiting=1)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        leaver = tasks.create_task(offload.run(ONE, held.work, "left"))
        await eventually(lambda: held.begun == ["left"])
        leaver.cancel()
        follower = tasks.create_task(offload.run(ONE, held.work, "follower"))
        await eventually(lambda: leaver.done() and offload.waiting == 1)
        assert repr(offload) == "<Offload 1 working, 1 waiting>"
        held.let_go()
        assert await follower == "follower"
        await eventually(lambda: offload.working == 0)


async def test_callers_that_leave_at_any_moment_lose_no_place() -> None:
    offload = Offload(threads=2, max_waiting=100)
    for turns in range(12):
        async with asyncio.TaskGroup() as tasks:
            leavers = [tasks.create_task(offload.run(ONE, sum, range(1000))) for _ in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for leaver in leavers[::2]:
                leaver.cancel()
    await eventually(lambda: repr(offload) == "<Offload 0 working, 0 waiting>")
    assert not offload._served


async def order(of: list[tuple[str, Share]], threads: int = 1) -> list[str]:
    """In which order work begins that came one after another while the threads were held up."""
    offload = Offload(threads, max_waiting=1000)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        for thread in range(threads):
            tasks.create_task(offload.run(Share("nobody"), held.work, f"held {thread}"))
        await eventually(lambda: len(held.begun) == threads)
        for name, share in of:
            tasks.create_task(offload.run(share, held.work, name))
        await asyncio.sleep(0)
        held.let_go()
    assert not offload._served
    return held.begun[threads:]


async def test_one_client_waits_for_another_in_turn() -> None:
    many = [(f"many {number}", Share("192.0.2.1")) for number in range(50)]
    begun = await order([*many, ("few 0", Share("192.0.2.2")), ("few 1", Share("192.0.2.2"))])
    assert begun[:4] == ["many 0", "few 0", "many 1", "few 1"]


async def test_clients_have_the_same_share_of_the_work_however_it_is_cut() -> None:
    long = [(f"long {number}", Share("192.0.2.1", 32)) for number in range(3)]
    short = [(f"short {number}", Share("192.0.2.2")) for number in range(40)]
    begun = await order([*long, *short])
    assert begun.index("long 1") == 1 + 32
    assert begun.index("long 2") == len(begun) - 1


async def test_a_clients_short_work_does_not_wait_for_all_of_its_long_work() -> None:
    """Behind a proxy all have one address."""
    long = [(f"long {number}", Share("192.0.2.1", 32)) for number in range(8)]
    begun = await order([*long, ("short 0", ONE), ("short 1", ONE)])
    assert begun[:3] == ["long 0", "short 0", "short 1"]


async def test_a_client_gets_no_credit_for_the_time_before_its_first_work() -> None:
    offload = Offload(threads=1, max_waiting=1000)
    old, new = Share("192.0.2.1"), Share("192.0.2.2")
    async with gate() as held, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(offload.run(old, time.sleep, 0.001)) for _ in range(100)]
        await eventually(runs[50].done)
        tasks.create_task(offload.run(old, held.work, "held"))
        await eventually(lambda: held.begun == ["held"])
        for place in range(3):
            tasks.create_task(offload.run(old, held.work, f"old {place}"))
            tasks.create_task(offload.run(new, held.work, f"new {place}"))
        await asyncio.sleep(0)
        held.let_go()
    assert held.begun == ["held", "new 0", "old 0", "new 1", "old 1", "new 2", "old 2"]


async def test_long_work_leaves_a_thread_free() -> None:
    offload = Offload(threads=2, max_waiting=1000)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(offload.run(Share(f"192.0.2.{number}", LONG_UNITS), held.work, "long"))
        await asyncio.sleep(0.02)
        assert held.begun == ["long"]
        assert await offload.run(ONE, max, 1, 2) == 2
        assert held.begun == ["long"]
        held.let_go()


async def test_where_too_much_waits_the_client_with_most_of_it_loses_its_newest() -> None:
    offload = Offload(threads=1, max_waiting=8)
    async with gate() as held, asyncio.TaskGroup() as tasks:
        tasks.create_task(offload.run(ONE, held.work, "held"))
        greedy = [asyncio.ensure_future(offload.run(Share("192.0.2.1", 2), held.work, "greedy")) for _ in range(4)]
        await eventually(lambda: offload.waiting == 8)
        with pytest.raises(Overloaded):
            await offload.run(Share("192.0.2.1", 2), held.work, "one too many")
        honest = tasks.create_task(offload.run(Share("192.0.2.2"), held.work, "honest"))
        with pytest.raises(Overloaded):
            await greedy[3]
        assert offload.waiting == 7
        held.let_go()
        assert await honest == "honest"
        assert await asyncio.gather(*greedy[:3]) == ["greedy"] * 3


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # who has one address has 2**64
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "192.0.2.2", False),
        ("not:an:address", "192.0.2.2", False),
    ],
)
async def test_a_client_is_an_address_or_an_ipv6_site(one: str, other: str, is_same: bool) -> None:
    begun = await order([("one 0", Share(one)), ("one 1", Share(one)), ("other", Share(other))])
    assert (begun == ["one 0", "one 1", "other"]) is is_same


def test_a_bodys_units() -> None:
    assert [count_units(size) for size in (0, 17_000, 256 * 1024, 1 << 20, 8 << 20)] == [1, 1, 1, 4, 32]


async def test_long_bodies_do_not_shut_out_short_ones_of_the_same_address(language: ModelLanguage) -> None:
    """As behind a proxy. 50 bodies of 8 MB had filled every place: no prompt was answered but with a 429."""
    long = orjson.dumps({"model": MODEL, "prompt": "word " * 250_000})
    short = orjson.dumps({"model": MODEL, "prompt": "word " * 3_500})
    assert len(short) > INLINE_BODY_BYTES
    limits = LimitSettings(max_body_bytes=len(long), client_write_timeout_s=30)
    async with AsyncExitStack() as opened:
        stack = await opened.enter_async_context(running(make_stack(language, limits)))
        for _ in range(50):
            greedy = await opened.enter_async_context(raw_client(stack))
            greedy.send("POST", "/tokenize", long)
        offload = stack.app.endpoints._offload
        await eventually(
            lambda: offload.working > 0 and offload.waiting >= offload._max_waiting - count_units(len(long))
        )
        for _ in range(10):
            async with raw_client(stack) as client:
                client.send("POST", "/tokenize", short)
                assert (await client.answer()).status == 200
        assert offload.waiting > offload._max_waiting // 2, "the long ones have had all the time they need"


def test_loop_may_end_before_the_work_does() -> None:
    offload = Offload(threads=1)
    held = Gate()

    async def leave() -> None:
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(offload.run(ONE, held.work, "left"))
            await eventually(lambda: held.begun == ["left"])
            run.cancel()

    asyncio.run(leave())
    held.let_go()
    offload._pool.shutdown(wait=True)
