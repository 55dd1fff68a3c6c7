"""`crossover serve --workers 2` as processes before scripted engines: one count, one policy, one page of metrics.

Engines hold every answer until the test lets go of it, so the test knows how many are in flight. A connection stays
with one worker, which `/admin/state` names.
"""

import asyncio
import os
import random
import re
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest

from tests.fakes.script import Asked, EndToken, Held, Say, Step
from tests.processes import find_parent, is_running
from tests.serving.stack import HELLO, MODEL, RawClient, eventually
from tests.serving.test_serve import STARTS_WITHIN_S, Served, served, start, write_config

Json: TypeAlias = Any  # whatever the server answered

WORKERS = 2
ENDED = re.compile(r"^crossover_requests_total\{.*\} (\S+)$", re.MULTILINE)
# Numbers of one process, which go on while another scrape is made.
OF_PROCESSES = re.compile(r"^(# \w+ )?(process_|crossover_tasks)")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own processes


@dataclass
class Site:
    """A gateway of two workers, and what its engines hold at the moment."""

    gateway: Served
    port: int
    held: list[Held] = field(default_factory=list)
    clients: list[RawClient] = field(default_factory=list)
    sent: int = 0
    let_go: int = 0

    def __post_init__(self) -> None:
        self.gateway.triton.script = self.gateway.vllm.script = self._hold

    def _hold(self, _: Asked) -> list[Step]:
        self.held.append(held := Held())
        return [Say((11,)), held, Say((12,)), EndToken()]

    @property
    def arrived(self) -> int:
        return len(self.gateway.triton.asked) + len(self.gateway.vllm.asked)

    def release(self, held: Held) -> None:
        self.held.remove(held)
        self.let_go += 1
        held.may_go.set()

    def release_all(self) -> None:
        for held in tuple(self.held):
            self.release(held)

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def connect_to_each(self) -> list[RawClient]:
        """One connection per worker, by index."""
        found: dict[int, RawClient] = {}
        async with asyncio.timeout(STARTS_WITHIN_S):
            while len(found) < WORKERS:
                await asyncio.sleep(0.005)
                client = await self.connect()
                found.setdefault((await state(client))["answered_by"], client)
        return [found[index] for index in range(WORKERS)]

    async def start(self) -> RawClient:
        """A request on a connection of its own; its lease is held for certain once the engines have it."""
        client = await self.connect()
        self.ask(client)
        return client

    def ask(self, client: RawClient) -> None:
        client.ask(stream=True)
        self.sent += 1

    async def close(self) -> None:
        for client in self.clients:
            client.writer.close()
        for client in self.clients:
            with suppress(ConnectionError):
                await client.writer.wait_closed()
        self.clients.clear()

    async def all_arrived(self) -> None:
        await eventually(lambda: self.arrived == self.sent)


async def get(client: RawClient, path: str) -> bytes:
    client.send("GET", path)
    answer = await client.answer()
    assert answer.status == 200
    return answer.body


async def state(client: RawClient) -> Json:
    return orjson.loads(await get(client, "/admin/state"))


async def in_flight(client: RawClient) -> int:
    seen = await state(client)
    (model,) = seen["models"]
    by_backend: int = sum(backend["in_flight"] for backend in model["backends"].values())
    by_worker = sum(worker["in_flight"] for worker in seen["workers"])
    assert model["in_flight"] == by_backend == by_worker
    return by_backend


async def put_policy(client: RawClient, **body: object) -> Json:
    body = {"low": "triton", "high": "vllm", **body}
    client.send("PUT", "/admin/policy", orjson.dumps(body), content_type="application/json")
    answer = await client.answer()
    return answer.status, orjson.loads(answer.body)


async def until(holds: Callable[[], Any], within_s: float = 30.0) -> None:  # Any: a coroutine of something that asks
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 - other processes' state, which raises no event here
            await asyncio.sleep(0.01)


async def ended(client: RawClient) -> float:
    return sum(map(float, ENDED.findall((await get(client, "/metrics")).decode())))


@asynccontextmanager
async def opened(folder: Path, workers: int = WORKERS) -> AsyncIterator[Site]:
    config = ("--workers", str(workers), "--drain-timeout-s", "20")
    async with served(folder, *config) as gateway:
        site = Site(gateway, int(gateway.url.split(":")[2].removesuffix("/v1")))
        yield site
        await site.close()


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with opened(tmp_path_factory.mktemp("workers")) as site:
        yield site


@pytest.fixture
async def site(shared: Site) -> AsyncIterator[Site]:
    """The shared gateway, at rest before and after."""
    yield shared
    shared.release_all()
    client = await shared.connect()

    async def at_rest() -> bool:
        return await in_flight(client) == 0

    await until(at_rest)
    await shared.close()


async def test_the_count_is_the_truth_at_every_sample(site: Site) -> None:
    """500 requests that start and end at random on both workers.

    A sample is taken where the truth is known without guessing: every request sent is with an engine, so its lease is
    held; every answer let go has been counted as ended by its worker, which gives the lease back in the same step, and
    every worker has answered something since, so that step is over.
    """
    chance = random.Random(7)
    pinned = await site.connect_to_each()
    before = await ended(pinned[0])
    samples = site.sent = site.let_go = 0
    for engine in (site.gateway.triton, site.gateway.vllm):
        engine.asked.clear()
    while site.sent < 500:
        for _ in range(min(chance.randrange(30), 500 - site.sent)):
            await site.start()
        await site.all_arrived()
        for held in chance.sample(site.held, chance.randrange(len(site.held) + 1)):
            site.release(held)

        async def all_counted() -> bool:
            return await ended(pinned[0]) - before == site.let_go

        await until(all_counted)
        for client in pinned:
            await get(client, "/version")
        for client in pinned:
            assert await in_flight(client) == len(site.held)
            samples += 1
    assert samples > 30


async def test_a_burst_over_both_workers_splits_exactly_at_the_threshold(site: Site) -> None:
    (client, _) = await site.connect_to_each()
    assert (await put_policy(client, up=40, down=30, dwell_s=0.0))[0] == 200
    await asyncio.gather(*(site.start() for _ in range(100)))
    await site.all_arrived()
    (model,) = (await state(client))["models"]
    assert {name: backend["in_flight"] for name, backend in model["backends"].items()} == {"triton": 39, "vllm": 61}


async def test_a_policy_set_through_one_worker_holds_for_the_next_request_of_the_other(site: Site) -> None:
    one, other = await site.connect_to_each()
    for up, (setter, asker) in enumerate([(one, other), (other, one)] * 5, start=50):
        status, set_now = await put_policy(setter, up=up, down=1)
        assert status == 200
        asker.send("POST", "/v1/chat/completions", orjson.dumps({"model": MODEL, "messages": HELLO}))
        site.sent += 1
        await site.all_arrived()
        site.release(site.held[-1])
        assert (await asker.answer()).headers["x-crossover-reason"].endswith(f"up={up} down=1")
        assert orjson.loads(await get(asker, "/admin/policy")) == set_now
    histories = [(await state(client))["models"][0]["history"] for client in (one, other)]
    assert histories[0] == histories[1]


def node_samples(page: bytes) -> list[str]:
    return [line for line in page.decode().splitlines() if not OF_PROCESSES.match(line)]


async def test_metrics_are_the_same_whichever_worker_is_asked(site: Site) -> None:
    pinned = await site.connect_to_each()
    for _ in range(10):
        await site.start()
    await site.all_arrived()
    pages = [await get(client, "/metrics") for client in (*pinned, pinned[0])]
    while node_samples(pages[0]) != node_samples(pages[2]):  # engines were asked for their counts in between
        pages = [await get(client, "/metrics") for client in (*pinned, pinned[0])]
    assert node_samples(pages[0]) == node_samples(pages[1])
    for index in range(WORKERS):
        for name in ("process_cpu_seconds_total", "crossover_tasks"):
            assert all(f'{name}{{worker="{index}"}}'.encode() in page for page in pages)
    held = re.findall(rb"^crossover_in_flight\{.*\} (\S+)$", pages[1], re.MULTILINE)
    assert sum(map(float, held)) == 10


async def test_a_killed_worker_gives_its_leases_back_and_is_replaced(site: Site) -> None:
    survivor, _ = await site.connect_to_each()
    clients = [await site.connect() for _ in range(40)]
    answered_by = [(await state(client))["answered_by"] for client in clients]
    for client in clients:
        site.ask(client)
    await site.all_arrived()
    workers = (await state(survivor))["workers"]
    assert [worker["in_flight"] for worker in workers] == [answered_by.count(0), answered_by.count(1)]
    counted = node_counters(await get(survivor, "/metrics"))
    os.kill(workers[1]["pid"], signal.SIGKILL)

    async def is_true() -> bool:
        return await in_flight(survivor) == answered_by.count(0)

    await until(is_true)
    assert workers[1]["pid"] not in [worker["pid"] for worker in (await state(survivor))["workers"]]
    after = node_counters(await get(survivor, "/metrics"))
    assert {name: value for name, value in counted.items() if after[name] < value} == {}
    _, successor = await site.connect_to_each()
    assert (await state(successor))["workers"][1]["pid"] != workers[1]["pid"]
    assert await in_flight(successor) == answered_by.count(0)
    assert node_counters(await get(successor, "/metrics")) == node_counters(await get(survivor, "/metrics"))


async def test_a_worker_that_cannot_be_replaced_now_is_replaced_later(site: Site) -> None:
    survivor, _ = await site.connect_to_each()
    victim = (await state(survivor))["workers"][1]
    supervisor = find_parent(victim["pid"])
    limit = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, limit[1]))  # no descriptor more
    os.kill(victim["pid"], signal.SIGKILL)
    await asyncio.sleep(1.0)  # several tries, each longer after the one before
    assert [worker["index"] for worker in (await state(survivor))["workers"]] == [0]
    assert site.gateway.process.returncode is None
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limit)
    _, successor = await site.connect_to_each()
    assert (await state(successor))["workers"][1]["pid"] != victim["pid"]


def node_counters(page: bytes) -> dict[str, float]:
    """Everything that only ever rises, by name and labels."""
    pattern = re.compile(r"^(crossover_\w+_(?:total|bucket|count|sum)(?:\{.*\})?) (\S+)$", re.MULTILINE)
    return {name: float(value) for name, value in pattern.findall(page.decode())}


async def hold_on_each(site: Site) -> list[RawClient]:
    """Answers that have begun, on both workers."""
    clients = await site.connect_to_each()
    for client in clients:
        site.ask(client)
    for client in clients:
        await client.until(b"data: ")
    return clients


async def let_end(site: Site, clients: list[RawClient]) -> None:
    """No connection is accepted any more, and what has begun ends as it should."""

    async def refuses() -> bool:
        with suppress(ConnectionError):
            await site.connect()
            return False
        return True

    await until(refuses)
    site.release_all()
    for client in clients:
        await client.until(b"data: [DONE]")


async def test_on_sigterm_every_worker_ends_what_it_has_begun(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        clients = await hold_on_each(site)
        pids = [worker["pid"] for worker in await workers_of(site)]
        site.gateway.process.send_signal(signal.SIGTERM)
        await let_end(site, clients)
        code, log = await site.gateway.end()
        assert code == 0
        assert "Traceback" not in log
        assert not any(map(is_running, pids))


async def test_workers_whose_supervisor_is_killed_end_as_on_sigterm(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        clients = await hold_on_each(site)
        pids = [worker["pid"] for worker in await workers_of(site)]
        site.gateway.process.kill()
        await let_end(site, clients)
        await eventually(lambda: not any(map(is_running, pids)), within_s=30)


async def workers_of(site: Site) -> Json:
    return (await state(await site.connect()))["workers"]


async def test_a_gateway_whose_workers_cannot_start_does_not_start(tmp_path: Path) -> None:
    process = await start(write_config(tmp_path, tokenizer=str(tmp_path)), "--workers", "2")
    async with asyncio.timeout(STARTS_WITHIN_S):
        stdout, stderr = await process.communicate()
    assert (process.returncode, stdout) == (1, b"")
    assert str(tmp_path / "tokenizer.json") in stderr.decode()
    assert "Traceback" not in stderr.decode()
