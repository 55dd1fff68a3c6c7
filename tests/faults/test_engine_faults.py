"""What clients see while the way to an engine is broken, and after it is mended: the rows of table.py."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import aiohttp
import pytest

from deploy.cpu import cpu
from deploy.embedded import Pace, embedded
from deploy.launch import LOGS
from tests.faults.proxy import BlackHole, Fault, Reset, Silence
from tests.faults.stand import Broken, Stand, broken
from tests.faults.table import BEGUN, Row, params
from tests.faults.traffic import Fate, Outcome, Traffic, asks
from tests.system.site import becomes, kill

TOKENS = {"embedded": 12, "cpu": 200}
LEFT_WITHIN_S = 15.0
BACK_WITHIN_S = {
    "embedded": 10.0,
    "cpu": 20.0,
}  # real engines share two cores with all else: a connection takes seconds
WELL_WITHIN_S = 40.0  # before a fault, when the trial after the one before is over
AFTER_S = 0.5  # for which traffic goes on without the engine
MOST_ERRORS, PART = 5, 0.01  # until an engine is left, whichever is more


@pytest.fixture(scope="module")
def embedded_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    with broken(embedded(Pace(8.0, 32)), tmp_path_factory.mktemp("faults")) as stack:
        yield stack


@pytest.fixture(scope="module")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    folder = tmp_path_factory.mktemp("faults")
    with broken(cpu(folder / LOGS), folder) as stack:
        yield stack


@pytest.fixture(params=["embedded_pair", pytest.param("real_pair", marks=[pytest.mark.stack, pytest.mark.slow])])
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Stand(request.getfixturevalue(request.param), session)


def is_error(outcome: Outcome) -> bool:
    return outcome.fate is not Fate.ANSWERED


async def has_harmed(fault: Fault) -> bool:
    return fault.harmed > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("row", params())
async def test_a_fault_costs_clients_no_more_than_its_row_says_and_the_engine_is_used_again(
    stand: Stand, row: Row
) -> None:
    kinds, workers, log = asks(TOKENS[stand.stack.stack.name]), stand.workers, len(stand.log)
    traffic = Traffic(
        stand.url, stand.session, [[kinds["chat stream"]], [kinds["chat plain"]]] * 3 + [[kinds["seeded stream"]]]
    )

    async def is_served() -> bool:
        return any(found.backend == row.wire and not is_error(found) for found in traffic.since(mended))

    async def is_well() -> bool:
        """Beyond any trial."""
        return await is_served() and not await stand.is_left(row.wire)

    await stand.prefer(row.wire)
    mended, fault = time.monotonic(), row.fault()
    async with traffic.flowing():
        await becomes(is_well, True, within_s=WELL_WITHIN_S)
        with stand.proxies.broken(row.wire, fault):
            broke = time.monotonic()
            if row.is_left:
                await becomes(lambda: stand.is_left(row.wire), True, within_s=LEFT_WITHIN_S)
            else:
                await becomes(lambda: has_harmed(fault), True, within_s=LEFT_WITHIN_S)
            left = time.monotonic()
            await asyncio.sleep(AFTER_S)
        mended = time.monotonic()
        await becomes(is_served, True, within_s=BACK_WITHIN_S[stand.stack.stack.name])
        back = time.monotonic()
    errors = [outcome for outcome in traffic.outcomes if is_error(outcome)]
    seen = f"{row}: left after {left - broke:.1f} s, back after {back - mended:.1f} s; {dict(traffic.count())}"
    print(seen)  # noqa: T201 - pytest shows it when the test fails, and with -rP
    assert [error for error in errors if error.ask.may_move or error.code not in row.sees] == []
    assert len(errors) <= max(MOST_ERRORS, PART * len(traffic.outcomes))
    assert [error for error in errors if error.began > left] == []
    assert await stand.settle() == 0
    assert stand.workers == workers
    assert "Traceback" not in stand.log[log:]


SHORT = 8  # tokens: what an answer takes is no part of a recovery
LONG_S = 30.0  # after which every pause and every backoff is at its longest


@contextmanager
def stopped(stand: Stand, engine: str) -> Iterator[None]:
    kill(stand.stack, engine, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(stand.stack, engine, signal.SIGCONT)


def on_the_way(fault: Callable[[], Fault]) -> "Callable[[Stand, str], AbstractContextManager[None]]":
    return lambda stand, engine: stand.proxies.broken(engine, fault())


LONG: dict[str, Callable[[Stand, str], AbstractContextManager[None]]] = {
    "a stopped process": stopped,
    "connections reset": on_the_way(Reset),
    "a black hole": on_the_way(BlackHole),
    "silence within answers": on_the_way(lambda: Silence(BEGUN)),
}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("wire", ["triton", "vllm"])
@pytest.mark.parametrize("kind", LONG)
async def test_an_engine_is_back_within_ten_seconds_of_half_a_minute_away(stand: Stand, kind: str, wire: str) -> None:
    asked = asks(SHORT)
    traffic = Traffic(stand.url, stand.session, [[asked["chat stream"]], [asked["chat plain"]]] * 3)

    async def is_back() -> bool:
        return any(found.backend == wire and not is_error(found) for found in traffic.since(mended))

    await stand.prefer(wire)
    mended = time.monotonic()
    async with traffic.flowing():
        await becomes(is_back, True, within_s=WELL_WITHIN_S)
        with LONG[kind](stand, wire):
            await becomes(lambda: stand.is_left(wire), True, within_s=LEFT_WITHIN_S)
            await asyncio.sleep(LONG_S)
        mended = time.monotonic()
        await becomes(is_back, True, within_s=4 * LONG_S)
        back = time.monotonic()
    print(f"{wire} after {kind}: back after {back - mended:.1f} s")  # noqa: T201 - pytest shows it, with -rP
    assert back - mended < BACK_WITHIN_S["embedded"]
