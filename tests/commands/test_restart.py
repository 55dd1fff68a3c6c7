"""`crossover restart` and SIGHUP: a generation of workers in the place of another, while clients notice nothing."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest
import yaml

from tests.fakes.script import Asked, EndToken, Held, Pause, Say, Step
from tests.processes import is_running
from tests.serving.stack import HELLO, MODEL, eventually
from tests.serving.test_serve import Served, served, write_config

Json: TypeAlias = Any  # whatever the gateway answered
CHAT = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 50}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own processes


@dataclass
class Site:
    """A gateway, its configuration, and what goes wrong for its clients."""

    gateway: Served
    folder: Path
    session: aiohttp.ClientSession
    operator: aiohttp.ClientSession  # of which each request has a new connection, and so reaches the newest workers
    held: list[Held] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answered: int = 0

    @property
    def root(self) -> str:
        return self.gateway.url.removesuffix("/v1")

    @property
    def config(self) -> Path:
        return self.folder / "crossover.yaml"

    def play(self, *steps: Step) -> None:
        self.gateway.triton.script = self.gateway.vllm.script = lambda _: list(steps)

    def hold(self) -> None:
        """Has every answer wait in its midst."""

        def script(_: Asked) -> list[Step]:
            self.held.append(held := Held())
            return [Say((11,)), held, Say((12,)), EndToken()]

        self.gateway.triton.script = self.gateway.vllm.script = script

    async def restart_under_twenty(self, tasks: asyncio.TaskGroup) -> None:
        """Sends twenty requests, which engines hold, and restarts."""
        for _ in range(20):
            tasks.create_task(self.ask_once())
        await eventually(lambda: len(self.held) == 20)
        assert (await self.restart())[0] == 0

    def change(self, **changes: object) -> None:
        """Writes another file. The port stays any, since the socket is inherited."""
        write_config(self.folder, self.gateway.triton.port, self.gateway.vllm.port, **changes)

    def add_backend(self, name: str, **top: object) -> None:
        self.change()
        document = yaml.safe_load(self.config.read_text())
        document["models"][0]["backends"][name] = {"kind": "vllm", "url": f"http://127.0.0.1:{self.gateway.vllm.port}"}
        self.config.write_text(yaml.safe_dump(document | top))

    async def restart(self) -> tuple[int, str]:
        command = (sys.executable, "-c", "from gateway.cli import main; main()", "restart", "-c", str(self.config))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, (out + err).decode()

    async def state(self) -> Json:
        async with self.operator.get(f"{self.root}/admin/state") as answer:
            assert answer.status == 200
            return await answer.json()

    async def comes_to(self, holds: Callable[[Json], bool]) -> Json:
        async with asyncio.timeout(30):
            while not holds(state := await self.state()):  # noqa: ASYNC110 - another process's state, which raises no event
                await asyncio.sleep(0.01)
            return state

    async def put(self, path: str, **body: object) -> None:
        async with self.operator.put(f"{self.root}{path}", json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def ask(self, *, keeps: bool = True) -> None:
        headers = {} if keeps else {"connection": "close"}
        async with self.session.post(f"{self.gateway.url}/chat/completions", json=CHAT, headers=headers) as answer:
            text = await answer.text()
            if answer.status != 200 or not text.endswith("data: [DONE]\n\n") or '"error"' in text:
                self.errors.append(f"{answer.status} {text[-300:]}")

    async def ask_on(self, ended: asyncio.Event, *, keeps: bool) -> None:
        while not ended.is_set():
            await self.ask_once(keeps=keeps)

    async def ask_once(self, *, keeps: bool = True) -> None:
        try:
            await self.ask(keeps=keeps)
            self.answered += 1
        except (aiohttp.ClientError, OSError) as exc:
            self.errors.append(repr(exc))


@asynccontextmanager
async def opened(folder: Path, workers: int) -> AsyncIterator[Site]:
    async with (
        served(folder, "--workers", str(workers), "--drain-timeout-s", "20") as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as operator,
    ):
        yield Site(gateway, folder, session, operator)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("workers", [1, 2])
async def test_ten_restarts_under_200_in_flight_cost_no_request(tmp_path: Path, workers: int) -> None:
    async with opened(tmp_path, workers) as site:
        site.play(Say((11,)), *[step for _ in range(8) for step in (Pause(0.25), Say((12,)))], EndToken())
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(site.ask_on(ended, keeps=number % 4 != 0))
            await asyncio.sleep(2)
            for number in range(10):
                match number % 3:
                    case 0:
                        site.add_backend("third", limits={"max_body_bytes": 1_000_000 + number})
                    case 1:
                        site.change(policy={"low": "triton", "high": "vllm", "up": 50 + number, "down": 20})
                    case 2:
                        site.change()
                assert await site.restart() == (0, f"generation {number + 2} serves\n")
            ended.set()
        assert site.errors == []
        assert site.answered > 500
        state = await site.state()
        assert (state["generation"], state["restart"]["failed"]) == (11, None)
        assert "third" in state["models"][0]["backends"]


async def test_what_the_old_generation_has_in_flight_counts_until_it_ends(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as site:
        site.hold()
        await site.put("/admin/policy", low="triton", high="vllm", up=90, down=80)
        await site.put("/admin/backends/vllm", draining=True)
        before = await site.state()
        old = [worker["pid"] for worker in before["workers"]]
        async with asyncio.TaskGroup() as tasks:
            await site.restart_under_twenty(tasks)
            state = await site.state()
            assert not {worker["pid"] for worker in state["workers"]} & {*old}
            (model,) = state["models"]
            assert (model["in_flight"], model["backends"]["triton"]["steering"]) == (20, 20)
            assert (model["policy"]["up"], model["policy"]["version"]) == (90, 2)
            assert model["backends"]["vllm"]["draining"]
            for held in site.held[:5]:
                held.may_go.set()
            await site.comes_to(lambda state: state["models"][0]["in_flight"] == 15)
            # Another restart, while the first generation still drains.
            assert (await site.restart())[0] == 0
            assert (await site.state())["models"][0]["in_flight"] == 15
            for held in site.held[5:]:
                held.may_go.set()
        await site.comes_to(lambda state: state["models"][0]["in_flight"] == 0)
        await eventually(lambda: not any(map(is_running, old)), within_s=20)
        assert site.errors == []


async def test_leases_of_an_old_worker_that_is_killed_are_back(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as site:
        site.hold()
        old = [worker["pid"] for worker in (await site.state())["workers"]]
        async with asyncio.TaskGroup() as tasks:
            await site.restart_under_twenty(tasks)
            await site.comes_to(lambda state: state["models"][0]["in_flight"] == 20)
            for pid in old:
                with suppress(ProcessLookupError):  # one that got none of the requests has ended
                    os.kill(pid, signal.SIGKILL)
            await site.comes_to(lambda state: state["models"][0]["in_flight"] == 0)
        assert len(site.errors) == 20


async def test_a_single_worker_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as site:
        (victim,) = (await site.state())["workers"]
        os.kill(victim["pid"], signal.SIGSTOP)
        await eventually(lambda: not is_running(victim["pid"]), within_s=8)
        (successor,) = (await site.state())["workers"]  # as soon as it has started, which takes what the machine takes
        assert successor["pid"] != victim["pid"]


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_restart_that_fails_changes_nothing_and_says_why(tmp_path: Path, workers: int) -> None:
    async with opened(tmp_path, workers) as site:
        site.play(Say((11,)), EndToken())
        before = await site.state()
        assert (before["generation"], before["restart"]) == (1, None)
        site.change(policy={"low": "triton", "high": "gpu", "up": 4, "down": 2})
        site.gateway.process.send_signal(signal.SIGHUP)
        state = await site.comes_to(lambda state: state["restart"] is not None)
        assert "models.0.policy.high" in state["restart"]["failed"]
        site.change(tokenizer=str(tmp_path))
        code, words = await site.restart()
        assert code == 1
        assert "nothing has changed: worker " in words
        state = await site.state()
        assert (state["generation"], state["restart"]["generation"]) == (1, 3)
        assert [worker["pid"] for worker in state["workers"]] == [worker["pid"] for worker in before["workers"]]
        await site.ask()
        site.change()
        assert await site.restart() == (0, "generation 4 serves\n")
        await site.ask()
        assert site.errors == []
        site.gateway.process.terminate()
        code, log = await site.gateway.end()
        assert code == 0
        assert "generation 2 failed, nothing has changed" in log
        assert "Traceback" not in log


async def test_without_a_gateway_there_is_nothing_to_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as site:
        site.gateway.process.terminate()
        await site.gateway.end()
        code, words = await site.restart()
        assert code == 2
        assert str(tmp_path / "state" / "gateway.lock") in words
