"""Damaged requests, and engines whose answers are damaged, while a sound client of sound engines asks on.

Nothing hangs, nothing is lost for good, and a probe is hardly later than a process that does nothing.
"""

import asyncio
import json
import os
import random
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import aiohttp
import orjson
import pytest
import yaml

from tests.fakes.damage import DAMAGES, as_it_was
from tests.fuzz.heavy_bodies import BODIES, FLOODS
from tests.openai.streams import fold, read_events
from tests.processes import find_children
from tests.serving.stack import TOKENIZER
from tests.serving.test_serve import start

REQUESTS = int(os.environ.get("CROSSOVER_MUTATED_REQUESTS", "10000"))  # noqa: TID251 - a test's own settings
ANSWERS = int(os.environ.get("CROSSOVER_MUTATED_ANSWERS", "1000"))  # noqa: TID251 - as above
SEED = int(os.environ.get("CROSSOVER_FUZZ_SEED", "4"))  # noqa: TID251 - as above
SIDE_BY_SIDE = 8
WARM_UP = 200  # answers
PATIENCE_S = 15.0  # of a client with one answer; its engine may be silent for one second
UNANSWERED_S = 0.05  # how long a client waits whose request may be too short for an answer
MORE_S, MORE_MB = 0.05, 20.0
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100}
SOUND_CHAT = {**CHAT, "model": "sound"}


@dataclass
class Process:
    process: asyncio.subprocess.Process

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode()

    async def end(self) -> str:
        """What it prints when its input has ended."""
        out, _ = await self.process.communicate(b"end")
        return out.decode()


async def run(core: int, *arguments: str) -> Process:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdin=pipe, stdout=pipe)
    os.sched_setaffinity(process.pid, {core})
    return Process(process)


def write_config(folder: Path, ports: dict[str, int]) -> Path:
    vllm = {"kind": "vllm", "idle_timeout_s": 1.0}
    damaged = {
        "triton": {"kind": "triton", "url": f"grpc://127.0.0.1:{ports['triton']}", "idle_timeout_s": 1.0},
        "vllm": {**vllm, "url": f"http://127.0.0.1:{ports['vllm']}"},
        "relay": {"kind": "relay", "url": f"http://127.0.0.1:{ports['vllm']}", "idle_timeout_s": 1.0},
    }
    sound = {"vllm": {**vllm, "url": f"http://127.0.0.1:{ports['sound']}"}}
    policy = {"low": "triton", "high": "vllm", "up": 8, "down": 4}
    models = [
        {"id": "sound", "tokenizer": str(TOKENIZER), "backends": sound},
        {"id": "damaged", "tokenizer": str(TOKENIZER), "backends": damaged, "policy": policy},
    ]
    path = folder / "crossover.yaml"
    document = {"listen": "127.0.0.1:0", "models": models, "probe": {"down_interval_s": 0.02}}
    path.write_text(yaml.safe_dump(document))
    return path


@dataclass
class Site:
    """A gateway and a client of it. Two cores: one has the gateway and what is compared with it, one all else."""

    gateway: asyncio.subprocess.Process
    url: str
    ports: dict[str, int]
    session: aiohttp.ClientSession
    statuses: Counter[object] = field(default_factory=Counter)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def chat(self, **fields: object) -> tuple[int, bytes]:
        headers = {"x-crossover-pin": str(fields.pop("pin"))} if "pin" in fields else {}
        async with (
            asyncio.timeout(PATIENCE_S),
            self.session.post(f"{self.url}/v1/chat/completions", json={**CHAT, **fields}, headers=headers) as answer,
        ):
            try:
                return answer.status, await answer.read()
            except aiohttp.ClientPayloadError:  # a relayed answer that cannot be completed is broken off
                return answer.status, b""

    async def in_flight(self) -> int:
        async with self.session.get(f"{self.url}/admin/state") as answer:
            state = await answer.json()
        return sum(backend["in_flight"] for model in state["models"] for backend in model["backends"].values())

    async def tasks(self) -> int:
        async with self.session.get(f"{self.url}/metrics") as answer:
            page = await answer.text()
        return int(float(page.partition('crossover_tasks{worker="0"} ')[2].partition("\n")[0]))

    @cached_property
    def worker(self) -> int:
        (pid,) = (
            pid for pid, command in find_children(self.gateway.pid).items() if "gateway.commands.worker" in command
        )
        return pid

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.worker}/fd"))  # noqa: PTH208 - the count is all

    @property
    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.worker}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def site_in(folder: Path) -> AsyncIterator[Site]:
    os.sched_setaffinity(0, {1})
    engines = await run(1, "tests.fuzz.mutated_engines", str(SEED))
    ports = json.loads(await engines.line())
    gateway = await start(write_config(folder, ports))
    os.sched_setaffinity(gateway.pid, {0})
    try:
        assert gateway.stdout is not None
        line = (await gateway.stdout.readline()).decode()
        assert line.startswith("ready "), line
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
            yield Site(gateway, line.split()[1].removesuffix("/v1"), ports, session)
        assert gateway.returncode is None
    finally:
        gateway.kill()
        _, log = await gateway.communicate()
        await engines.end()
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    assert b"Traceback" not in log, log[log.index(b"Traceback") - 500 :][:3000].decode(errors="replace")


# The traffic.


def text_of(body: bytes, *, streams: bool) -> str:
    whole = fold(read_events(body), is_chat=True) if streams else orjson.loads(body)
    return str(whole["choices"][0]["message"]["content"])


async def ask_soundly(site: Site, expected: str, stop: asyncio.Event) -> int:
    """How often the right answer came; no other may."""
    count = 0
    while not stop.is_set():
        status, body = await site.chat(model="sound", stream=bool(count % 2))
        assert status == 200, body
        assert text_of(body, streams=bool(count % 2)) == expected
        count += 1
        await asyncio.sleep(0.02)
    return count


async def ask_damaged_engines(site: Site, draw: random.Random, answers: int) -> None:
    """Until they have damaged so many answers, each half of them."""
    while True:
        async with site.session.get(f"http://127.0.0.1:{site.ports['vllm']}/count") as answer:
            http, grpc = await answer.json()
        if min(http, grpc) >= answers // 2:
            return
        pins = [pin for pin, count in (("vllm", http), ("relay", http), ("triton", grpc)) if count < answers // 2]
        fields: dict[str, object] = {"stream": draw.random() < 0.7}
        if draw.random() < 0.3:
            fields["ignore_eos"] = True
        if (pin := draw.choice(pins)) != "relay" and draw.random() < 0.2:
            fields["logprobs"] = True
        status, body = await site.chat(model="damaged", pin=pin, **fields)
        if status == 503:
            await asyncio.sleep(0.02)  # until it has been found ready again
        site.statuses["engine", pin, status, b'{"error"' in body] += 1


def requests_of(draw: random.Random) -> bytes:
    bodies: Sequence[tuple[str, object]] = (
        ("/v1/chat/completions", {**SOUND_CHAT, "stream": True, "stop": ["x"], "logit_bias": {"5": 1.5}}),
        ("/v1/chat/completions", {**SOUND_CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("/v1/completions", {"model": "sound", "prompt": [5, 6, 7], "max_tokens": 5, "n": 2}),
        ("/v1/completions", {"model": "sound", "prompt": "a text " * 3000, "echo": True}),  # read in a thread
        ("/tokenize", {"model": "sound", "prompt": "Hello", "return_token_strs": True}),
        ("/detokenize", {"model": "sound", "tokens": [5, 6, 7]}),
        ("/v1/embeddings", {"model": "sound", "input": "Hello"}),
    )
    path, document = draw.choice(bodies)
    body = orjson.dumps(document)
    framing = f"content-length: {len(body)}\r\n"
    if draw.random() < 0.2:
        framing, body = "transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    whole = (
        f"POST {path}?a=b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n".encode()
        + body
    )
    if draw.random() < 0.1:
        whole = draw.choice((
            b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ))
    return draw.choice([damage for damage in DAMAGES if damage is not as_it_was])(draw, whole)


async def send_damaged(site: Site, draw: random.Random, left: list[int]) -> None:
    while left[0] > 0:
        left[0] -= 1
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        try:
            writer.write(requests_of(draw))
            async with asyncio.timeout(UNANSWERED_S):
                line = await reader.readline()
            site.statuses["client", line[9:12]] += 1
        except TimeoutError:
            site.statuses["client", "waited"] += 1
        except ConnectionError:
            site.statuses["client", "reset"] += 1
        finally:
            writer.transport.abort()


async def warm_up(site: Site, draw: random.Random) -> None:
    """Until caches and pools have the size they will keep."""
    for _ in range(200):
        await site.chat(model="sound")
        await send_damaged(site, draw, [1])
    await ask_damaged_engines(site, draw, WARM_UP)
    await asyncio.gather(*(site.chat(model="sound") for _ in range(3 * SIDE_BY_SIDE)))
    await asyncio.sleep(1.5)
    site.statuses.clear()


async def settle(site: Site, before: tuple[int, int]) -> tuple[int, int, int]:
    """In flight, descriptors and tasks, once they are what they were or do not become it."""
    found = 0, 0, 0
    for _ in range(100):
        found = await site.in_flight(), site.descriptors, await site.tasks()
        if found[0] == 0 and found[1] <= before[0] and found[2] <= before[1]:
            break
        await asyncio.sleep(0.1)
    return found


def find_excess(
    probes: Sequence[tuple[float, float]], bare: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """How much later each probe was than what only sleeps, at about the same time; (seconds, when)."""
    starts = [when for when, _ in bare]
    excess = []
    for when, late in probes:
        first = max(bisect_left(starts, when - 0.1) - 1, 0)
        last = bisect_left(starts, when + late + 0.1)
        excess.append((late - max((stall for _, stall in bare[first:last]), default=0.0), when))
    return excess


async def post(site: Site, path: str, body: bytes) -> int:
    """The status of an answer that is read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)
    async with asyncio.timeout(30):
        line = await reader.readline()
        while await reader.read(1 << 20):
            pass
    writer.close()
    return int(line.split()[1])


async def send_flood(site: Site, flood: bytes) -> None:
    """Reads what comes, for a while; the client of a flood does not wait for all of its answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(flood)
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(1.0):
            while await reader.read(1 << 20):
                pass
    writer.transport.abort()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
async def test_nothing_that_a_client_sends_holds_up_the_others(tmp_path: Path) -> None:
    """Work in a thread that holds the interpreter's lock would hold them up, too."""
    async with site_in(tmp_path) as site:
        await site.chat(model="sound")
        probing, sleeping = await run(0, "tests.fuzz.lateness", str(site.port)), await run(0, "tests.fuzz.lateness")
        began: list[tuple[float, str]] = []
        for name, (path, body) in BODIES.items():
            began.append((time.monotonic(), name))
            assert await post(site, path, body) < 500, name
        for name, flood in FLOODS.items():
            began.append((time.monotonic(), f"a flood {name}"))
            await send_flood(site, flood)
        probes, bare = json.loads(await probing.end()), json.loads(await sleeping.end())
    worst = {name: 0.0 for _, name in began}
    for late, when in find_excess(probes, bare):
        name = next((name for start, name in reversed(began) if start <= when + max(late, 0)), began[0][1])
        worst[name] = max(worst[name], late)
    print({name: f"{1000 * late:.0f} ms" for name, late in worst.items()})  # noqa: T201 - as above
    assert {name: late for name, late in worst.items() if late >= MORE_S} == {}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
async def test_damage_is_borne(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    async with site_in(tmp_path) as site:
        _, sound = await site.chat(model="sound")
        expected = text_of(sound, streams=False)
        await warm_up(site, draw)
        before = site.descriptors, await site.tasks()
        megabytes = site.megabytes
        probing, sleeping = await run(0, "tests.fuzz.lateness", str(site.port)), await run(0, "tests.fuzz.lateness")
        stop, began = asyncio.Event(), time.monotonic()
        left = [REQUESTS]
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ask_soundly(site, expected, stop))
            async with asyncio.TaskGroup() as damage:
                for _ in range(SIDE_BY_SIDE):
                    damage.create_task(send_damaged(site, draw, left))
                    damage.create_task(ask_damaged_engines(site, draw, ANSWERS + WARM_UP))
            stop.set()
        seconds = time.monotonic() - began
        probes, bare = json.loads(await probing.end()), json.loads(await sleeping.end())
        after = await settle(site, before)
        grown = site.megabytes - megabytes
        excess = max(find_excess(probes, bare))
        print(  # noqa: T201 - pytest shows it when the test fails, and with -rP
            f"{REQUESTS} requests, {ANSWERS} answers, {seconds:.1f} s; {asking.result()} sound ones; {site.statuses}\n"
            f"probes {len(probes)}, latest {1000 * max(late for _, late in probes):.1f} ms, "
            f"bare {1000 * max(late for _, late in bare):.1f} ms, excess {1000 * excess[0]:.1f} ms; "
            f"descriptors and tasks {before} -> {after[1:]}, {megabytes:.1f} MB + {grown:.1f}"
        )
        assert asking.result() > 10
        assert after[0] == 0
        assert after[1:] <= before
        assert grown < MORE_MB
        assert excess[0] < MORE_S
