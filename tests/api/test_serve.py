"""`crossover serve` as a process, before scripted engines that speak the real wires."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from openai import APIError, AsyncOpenAI

from tests.api.conftest import HELLO, TOKENIZER, Writer, eventually
from tests.fakes.script import EndToken, Pause, Say, Stall, Step
from tests.fakes.triton import FakeTriton
from tests.fakes.vllm import FakeVLLM

STARTS_WITHIN_S = 40  # on a busy machine


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the server under test has its own process


@dataclass(slots=True)
class Served:
    process: asyncio.subprocess.Process
    url: str
    triton: FakeTriton
    vllm: FakeVLLM

    @property
    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=30)

    async def end(self) -> tuple[int, str]:
        """Exit code and what it had to say, once it has ended by itself."""
        async with asyncio.timeout(20):
            _, stderr = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, stderr.decode()


def write_config(folder: Path, triton: int = 1, vllm: int = 1, **changes: object) -> Path:
    model = {
        "id": "tiny",
        "tokenizer": str(TOKENIZER),
        "backends": {
            "triton": {"kind": "triton", "url": f"grpc://127.0.0.1:{triton}"},
            "vllm": {"kind": "vllm", "url": f"http://127.0.0.1:{vllm}"},
        },
        "policy": {"low": "triton", "high": "vllm", "up": 4, "down": 2},
    }
    path = folder / "crossover.yaml"
    path.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", "models": [model | changes]}))
    return path


async def start(config: Path, *options: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-c", "from gateway.cli import main; main()", "serve", "-c", str(config), *options)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


@asynccontextmanager
async def served(folder: Path, *options: str) -> AsyncIterator[Served]:
    async with FakeTriton().serving() as triton, FakeVLLM().serving() as vllm:
        process = await start(write_config(folder, triton.port, vllm.port), *options)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                line = (await process.stdout.readline()).decode()
            assert line.startswith("ready http://127.0.0.1:"), (await process.communicate())[1].decode()
            yield Served(process, line.split()[1], triton, vllm)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


async def run(config: Path) -> tuple[int, str]:
    process = await start(config)
    async with asyncio.timeout(STARTS_WITHIN_S):
        stdout, stderr = await process.communicate()
    assert stdout == b""
    assert process.returncode is not None
    return process.returncode, stderr.decode()


async def test_both_engines_answer_alike_behind_one_endpoint(tmp_path: Path, writer: Writer) -> None:
    said: list[Step] = [*(Say((token_id,)) for token_id in writer.ids("Paris, 巴黎, is nice 🙂.")), EndToken()]
    async with served(tmp_path) as gateway, gateway.client as client:
        gateway.triton.play(*said)
        gateway.vllm.play(*said)
        answers = [
            await client.chat.completions.create(model="tiny", messages=HELLO, extra_headers={"x-crossover-pin": pin})
            for pin in ("triton", "vllm")
        ]
        assert answers[0].choices == answers[1].choices
        assert answers[0].usage == answers[1].usage
        assert gateway.triton.asked[0].prompt == gateway.vllm.asked[0].prompt


async def test_the_operators_routes_stand_beside_the_inference_routes(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url.removesuffix("/v1")) as operator:
            for path in ("/health", "/ready", "/version", "/metrics", "/admin/state", "/openapi.json"):
                assert (await operator.get(path)).status_code == 200, path
            for path in ("/docs", "/redoc"):  # pages that load scripts from elsewhere
                assert (await operator.get(path)).status_code == 404, path
        gateway.process.send_signal(signal.SIGINT)
        code, log = await gateway.end()
    assert code == 0
    assert len(log.splitlines()) == 2  # that each backend is ready
    assert "is ready" in log


async def test_an_answer_under_way_ends_before_the_server_does(tmp_path: Path, writer: Writer) -> None:
    ids = writer.ids("Paris is nice.")
    async with served(tmp_path) as gateway, gateway.client as client:
        gateway.triton.script = lambda asked: [Say(tuple(ids[:3])), Pause(1.0), Say(tuple(ids[3:])), EndToken()]
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        texts: list[str] = []
        async for chunk in stream:
            if not texts:
                gateway.process.send_signal(signal.SIGTERM)
            texts.append(chunk.choices[0].delta.content or "")
        assert "".join(texts) == "Paris is nice."
        code, log = await gateway.end()
        assert code == 0
        assert "Traceback" not in log


async def test_what_does_not_end_in_the_drain_time_ends_with_an_error_event(tmp_path: Path, writer: Writer) -> None:
    async with served(tmp_path, "--drain-timeout-s", "1") as gateway, gateway.client as client:
        gateway.triton.script = lambda asked: [Say(tuple(writer.ids("Paris"))), Stall()]
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        await anext(stream)
        gateway.process.send_signal(signal.SIGTERM)
        with pytest.raises(APIError, match="shutting down") as caught:
            _ = [chunk async for chunk in stream]
        assert caught.value.code == "shutting_down"
        code, log = await gateway.end()
        assert code == 0
        assert "Traceback" not in log
        await eventually(lambda: gateway.triton.running == 0)


async def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = write_config(tmp_path)
        config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        code, log = await run(config)
    assert (code, log) == (1, f"crossover serve: cannot listen on 127.0.0.1:{port}: Address already in use\n")


async def test_a_tokenizer_that_does_not_load_is_named(tmp_path: Path) -> None:
    code, log = await run(write_config(tmp_path, tokenizer=str(tmp_path)))
    assert code == 1
    assert str(tmp_path / "tokenizer.json") in log
    assert "Traceback" not in log


async def test_every_problem_of_a_configuration_is_named(tmp_path: Path) -> None:
    code, log = await run(write_config(tmp_path, policy={"low": "triton", "high": "gpu", "up": "many", "down": 1}))
    assert code == 2
    assert "models.0.policy.up" in log
    assert "Traceback" not in log
