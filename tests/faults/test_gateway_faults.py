"""What befalls the gateway's own machine while it serves: a full disk, a clock that jumps, no file descriptors left."""

import asyncio
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.fakes.script import EndToken, Held, Pause, Say
from tests.fakes.triton import FakeTriton
from tests.fakes.vllm import FakeVLLM
from tests.faults.stand import count_descriptors
from tests.processes import find_children, is_running
from tests.serving.stack import HELLO, Writer, eventually
from tests.serving.test_serve import STARTS_WITHIN_S, write_config

TEXT = "Paris is nice."
CHAT = {"model": "tiny", "messages": HELLO}
RESPONSE = {"model": "tiny", "input": "Hello"}
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own process


@dataclass(slots=True)
class Gateway:
    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    triton: FakeTriton
    vllm: FakeVLLM
    log: Path

    @property
    def worker(self) -> int:
        found = find_children(self.process.pid)
        (pid,) = (pid for pid, command in found.items() if "gateway.commands.worker" in command)
        return pid

    async def chat(self, **fields: object) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={**CHAT, **fields})

    async def model(self) -> dict[str, Any]:  # Any: JSON
        found: dict[str, Any] = (await self.client.get("/admin/state")).json()["models"][0]
        return found

    async def in_flight(self) -> int:
        return sum(backend["in_flight"] for backend in (await self.model())["backends"].values())

    async def set_policy(self, up: int) -> int:
        policy = {"kind": "threshold", "low": "triton", "high": "vllm", "up": up, "down": 1}
        return (await self.client.put("/admin/policy", json=policy)).status_code


@asynccontextmanager
async def serving(
    folder: Path,
    ids: list[int],
    environment: Mapping[str, str] | None = None,
    **whole: Any,  # Any: of YAML
) -> AsyncIterator[Gateway]:
    """A gateway of one worker before scripted engines; `whole`: keys of its crossover.yaml."""
    async with FakeTriton().serving() as triton, FakeVLLM().serving() as vllm:
        for engine in (triton, vllm):
            engine.play(*(Say((token,)) for token in ids), EndToken())
        config, log = write_config(folder, triton.port, vllm.port), folder / "gateway.log"
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | whole))
        command = (sys.executable, "-c", "from gateway.cli import main; main()", "serve", "-c", str(config))
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(environment or {})},  # noqa: TID251 - starts a process
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                line = (await process.stdout.readline()).decode()
            assert line.startswith("ready "), log.read_text()
            url = line.split()[1].removesuffix("/v1")
            limits = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as client:
                yield Gateway(process, client, triton, vllm, log)
            assert process.returncode is None
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            async with asyncio.timeout(40):
                await process.communicate()
        assert "Traceback" not in log.read_text()


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own that holds a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    made = None
    with suppress(FileNotFoundError):
        made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made is None or made.returncode:
        pytest.skip(f"no disk of one's own: {'no mount' if made is None else made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


async def run_keys(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-c", "from gateway.cli import main; main()", "keys", *arguments, "-c", str(config))
    return await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True)


async def test_a_full_disk_costs_no_answer_and_what_is_kept_stays_whole(
    tmp_path: Path, small_disk: Path, writer: Writer
) -> None:
    state = small_disk / "state"
    more: dict[str, Any] = {
        "state_folder": str(state),
        "arrivals_file": str(small_disk / "arrivals"),
        "responses": {"keep": "file"},
    }  # Any: by name
    async with serving(tmp_path, writer.ids(TEXT), **more) as gateway:
        kept = (await gateway.client.post("/v1/responses", json=RESPONSE)).json()["id"]
        assert await gateway.set_policy(100) == 200
        before = (state / "policies.json").read_bytes()
        filler = fill(small_disk)
        answers = await asyncio.gather(*(gateway.chat() for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        for _ in range(40):  # the last bytes of files that are there already are used up too
            assert (await gateway.client.post("/v1/responses", json=RESPONSE)).status_code == 200
        assert await gateway.set_policy(200) == 200
        assert (await gateway.model())["policy"]["up"] == 200
        assert (state / "policies.json").read_bytes() == before
        made = await run_keys(tmp_path / "crossover.yaml", "create", "ops", "--scope", "operator")
        assert (made.returncode, "No space left" in made.stderr, made.stdout) == (2, True, "")
        assert (await gateway.client.get(f"/v1/responses/{kept}")).status_code == 200
        dropped = await gateway.client.delete(f"/v1/responses/{kept}")
        assert (dropped.status_code, dropped.json()["error"]["code"]) == (500, "internal_error")
        filler.unlink()
        assert await gateway.set_policy(300) == 200
        assert b"300" in (state / "policies.json").read_bytes()
        again = (await gateway.client.post("/v1/responses", json=RESPONSE)).json()["id"]
        assert (await gateway.client.get(f"/v1/responses/{again}")).status_code == 200
        assert await gateway.in_flight() == 0
        log = gateway.log.read_text()
    assert "the policy of tiny ends with this gateway" in log
    assert "was not kept" in log


# A clock that jumps.


@dataclass(slots=True)
class Clock:
    """The wall clock of the processes that get `environment`."""

    file: Path
    environment: Mapping[str, str]

    def shift(self, seconds: float) -> None:
        with self.file.open("r+b") as file:
            file.write(struct.pack("d", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    compiler, library, file = shutil.which("cc"), tmp_path / "shifted_clock.so", tmp_path / "shift"
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler for a clock that can be shifted")
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run((compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)), check=True)
    file.write_bytes(struct.pack("d", 0.0))
    return Clock(file, {"LD_PRELOAD": str(library), "CROSSOVER_SHIFT": str(file)})


async def test_a_clock_that_jumps_touches_keys_with_an_end_and_nothing_else(
    tmp_path: Path, clock: Clock, writer: Writer
) -> None:
    config, secrets = write_config(tmp_path), {}
    for name, options in (("ops", ("--scope", "operator")), ("brief", ("--expires", "1h"))):
        secrets[name] = (await run_keys(config, "create", name, *options)).stdout.strip()
    brief = {"authorization": f"Bearer {secrets['brief']}"}
    ids = writer.ids(TEXT)
    async with serving(tmp_path, ids, clock.environment) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {secrets['ops']}"
        gateway.triton.play(Say(tuple(ids[:2])), held := Held(), *(Say((token,)) for token in ids[2:]), EndToken())
        streamed = asyncio.ensure_future(gateway.chat(stream=True))
        await eventually(lambda: gateway.triton.running == 1)
        worker = gateway.worker
        for shift, status in ((DAY_S, 401), (0.0, 200), (-2 * DAY_S, 200), (0.0, 200)):
            clock.shift(shift)
            await asyncio.sleep(0.3)
            assert (await gateway.client.get("/v1/models", headers=brief)).status_code == status, shift
            gateway.triton.play(*(Say((token,)) for token in ids), EndToken())
            assert (await gateway.chat()).json()["choices"][0]["message"]["content"] == TEXT
            assert (await gateway.client.get("/ready")).status_code == 200
        held.may_go.set()
        answer = await streamed
        assert (answer.status_code, b"data: [DONE]" in answer.content) == (200, True)
        assert await gateway.in_flight() == 0
        assert gateway.worker == worker


# No file descriptors left.


async def test_a_worker_without_descriptors_refuses_and_serves_again_once_there_are_some(
    tmp_path: Path, writer: Writer
) -> None:
    ids = writer.ids(TEXT)
    async with serving(tmp_path, ids) as gateway:
        assert (await gateway.chat()).status_code == 200
        worker, (_, hard) = gateway.worker, resource.prlimit(gateway.worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (count_descriptors(worker) + 3, hard))
        found: list[int] = []

        async def ask_once() -> None:
            try:
                found.append((await gateway.chat()).status_code)
            except httpx.TransportError:
                found.append(0)

        for engine in (gateway.triton, gateway.vllm):
            engine.play(Say(tuple(ids)), Pause(1.0), EndToken())
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ask_once())
            await asyncio.sleep(3)
            resource.prlimit(worker, resource.RLIMIT_NOFILE, (hard, hard))
        assert set(found) <= {0, 200, 429, 503}
        assert 0 < found.count(200) < len(found)
        freed = time.monotonic()
        while True:
            with suppress(httpx.TransportError):
                if (await gateway.chat()).status_code == 200:
                    break
            assert time.monotonic() - freed < 10
            await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(gateway.chat() for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert await gateway.in_flight() == 0
        assert gateway.worker == worker
        assert is_running(worker)
