"""Random faults for minutes under requests of every API: each is accounted for, and the gateway keeps nothing of it.

CROSSOVER_SOAK_S sets for how long, CROSSOVER_FUZZ_SEED which faults.
"""

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from deploy.embedded import Pace, embedded
from tests.faults.proxy import Reset
from tests.faults.stand import (
    ENGINES,
    Broken,
    Stand,
    broken,
    count_descriptors,
    count_sockets,
    find_engine,
    measure_megabytes,
)
from tests.faults.table import ROWS
from tests.faults.traffic import Ask, Fate, Traffic, asks
from tests.system.site import becomes, kill

SOAK_S = float(os.environ.get("CROSSOVER_SOAK_S", "180"))  # noqa: TID251 - a test's own settings
SEED = int(os.environ.get("CROSSOVER_FUZZ_SEED", "4"))  # noqa: TID251 - as above
PERIOD_S, FAULT_S = 20.0, 8.0  # from one fault to the next, and of each
REST_S = 3.0
CLIENTS_OF_A_KIND = 2
WORKERS = 2
# After every kind of fault once, what may come on top of what a worker holds at rest.
MORE_MB, MORE_DESCRIPTORS, MORE_SOCKETS, MORE_TASKS = 20.0, 4, 4, 2
PROCESS_FAULTS = ("killed", "frozen")


@pytest.fixture
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    with broken(embedded(Pace(4.0, 32)), tmp_path_factory.mktemp("soak"), WORKERS) as stack:
        yield stack


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker holds at rest."""

    megabytes: float
    descriptors: int
    sockets: int
    tasks: int


async def measure(stand: Stand) -> dict[int, Held]:
    """By worker's pid; at rest, and without idle connections to engines, of which there are as many as clients asked at
    once.
    """
    for engine in ENGINES:
        with stand.proxies.broken(engine, Reset()):
            pass
    await asyncio.sleep(REST_S)
    await becomes(lambda: have_all_back(stand), True, within_s=20)
    async with stand.session.get(f"{stand.url}/metrics") as answer:
        page = await answer.text()
    tasks = {
        int(worker): int(float(count)) for worker, count in re.findall(r'crossover_tasks\{worker="(\d+)"\} (\S+)', page)
    }
    async with stand.session.get(f"{stand.url}/admin/state") as answer:
        workers = (await answer.json())["workers"]
    return {
        worker["pid"]: Held(
            measure_megabytes(worker["pid"]),
            count_descriptors(worker["pid"]),
            count_sockets(worker["pid"]),
            tasks[worker["index"]],
        )
        for worker in workers
    }


@asynccontextmanager
async def breaking(stand: Stand, name: str, engine: str) -> AsyncIterator[None]:
    """A fault of the table, or of the engine's process, until the block is left."""
    if name == "killed":
        kill(stand.stack, engine)
        yield
        stand.stack.supervisor.start(find_engine(stand, engine))
    elif name == "frozen":
        kill(stand.stack, engine, signal.SIGSTOP)
        yield
        kill(stand.stack, engine, signal.SIGCONT)
    else:
        (row,) = (row for row in ROWS if (row.name, row.wire) == (name, engine))
        with stand.proxies.broken(engine, row.fault()):
            yield


async def have_all_back(stand: Stand) -> bool:
    """Whether both engines are used, as far as the worker that answers knows."""
    return not any([await stand.is_left(engine) for engine in ENGINES])


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 300)
async def test_random_faults_cost_no_request_without_a_word_and_leave_nothing_behind(two_workers: Broken) -> None:
    draw, kinds = random.Random(SEED), list(asks(24).values())
    faults = [(row.name, row.wire) for row in ROWS] + [(name, wire) for name in PROCESS_FAULTS for wire in ENGINES]
    # Each request on a connection of its own: requests go to both workers.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        stand = Stand(two_workers, session)
        workers = stand.workers
        await stand.prefer("triton")
        await warm_up(stand, kinds, faults)
        before = await measure(stand)
        traffic = Traffic(stand.url, session, [[kind] for kind in kinds] * CLIENTS_OF_A_KIND)
        ends = time.monotonic() + SOAK_S
        async with traffic.flowing():
            while time.monotonic() < ends:
                name, engine = draw.choice(faults)
                await stand.prefer(draw.choice(ENGINES))
                async with breaking(stand, name, engine):
                    await asyncio.sleep(FAULT_S)
                await asyncio.sleep(PERIOD_S - FAULT_S)
        await becomes(lambda: have_all_back(stand), True, within_s=20)
        assert await stand.settle() == 0
        after = await measure(stand)
        seen = f"{len(traffic.outcomes)} requests: {dict(traffic.count())}\n{before}\n{after}"
    print(seen)  # noqa: T201 - pytest shows it when the test fails, and with -rP
    assert [outcome for outcome in traffic.outcomes if outcome.fate is Fate.LOST] == []
    assert stand.workers == workers
    for pid, held in before.items():
        assert after[pid].megabytes - held.megabytes < MORE_MB
        assert after[pid].descriptors - held.descriptors <= MORE_DESCRIPTORS
        assert after[pid].sockets - held.sockets <= MORE_SOCKETS
        assert after[pid].tasks - held.tasks <= MORE_TASKS
    assert "Traceback" not in stand.log


async def warm_up(stand: Stand, kinds: list[Ask], faults: list[tuple[str, str]]) -> None:
    """Every fault once, briefly, so that caches and pools have the size they will keep."""
    traffic = Traffic(stand.url, stand.session, [[kind] for kind in kinds] * CLIENTS_OF_A_KIND)
    async with traffic.flowing():
        for name, engine in faults:
            await stand.prefer(engine)
            async with breaking(stand, name, engine):
                await asyncio.sleep(1.0)
            await asyncio.sleep(0.5)
    await becomes(lambda: have_all_back(stand), True, within_s=30)
    await stand.settle()
