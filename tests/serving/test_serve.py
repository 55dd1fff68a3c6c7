"""`crossover serve` as a process, before scripted engines on the real wires."""

import asyncio
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from openai import APIError, AsyncOpenAI

from tests.fakes.script import EndToken, Pause, Say, Stall
from tests.fakes.triton import FakeTriton
from tests.fakes.vllm import FakeVLLM
from tests.serving.stack import HELLO, TOKENIZER, Writer, eventually

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
        """Exit code and log, once it has ended by itself."""
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


async def start(config: Path, *options: str, before: Callable[[], None] | None = None) -> asyncio.subprocess.Process:
    """`before`: runs in the process before the gateway does."""
    command = (sys.executable, "-c", "from gateway.cli import main; main()", "serve", "-c", str(config), *options)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, preexec_fn=before)


@asynccontextmanager
async def served(folder: Path, *options: str, before: Callable[[], None] | None = None) -> AsyncIterator[Served]:
    async with FakeTriton().serving() as triton, FakeVLLM().serving() as vllm:
        process = await start(write_config(folder, triton.port, vllm.port), *options, before=before)
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


async def test_an_answer_under_way_ends_before_the_server_or_with_an_error_event(
    tmp_path: Path, writer: Writer
) -> None:
    ids = writer.ids("Paris is nice.")
    async with served(tmp_path, "--drain-timeout-s", "2") as gateway, gateway.client as client:
        gateway.triton.play(Say(tuple(ids)), Stall())
        endless = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        await anext(endless)
        gateway.triton.play(Say(tuple(ids[:3])), Pause(0.5), Say(tuple(ids[3:])), EndToken())
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        first = await anext(stream)
        gateway.process.send_signal(signal.SIGTERM)
        texts = [chunk.choices[0].delta.content or "" for chunk in [first, *[chunk async for chunk in stream]]]
        assert "".join(texts) == "Paris is nice."
        with pytest.raises(APIError, match="shutting down") as caught:
            _ = [chunk async for chunk in endless]
        assert caught.value.code == "shutting_down"
        code, log = await gateway.end()
        assert code == 0
        assert "Traceback" not in log
        await eventually(lambda: gateway.triton.running == 0)


async def test_what_has_not_arrived_does_not_hold_up_the_end(tmp_path: Path) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    over_asgi = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"
    async with served(tmp_path) as gateway, AsyncExitStack() as clients:
        answers = []
        for sent in (b"POST", head, head + b"{", over_asgi):
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(gateway.url).port)
            clients.callback(writer.close)
            writer.write(sent)
            answers.append((sent, reader))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        code, log = await gateway.end()
        assert (code, "Traceback" in log) == (0, False)
        assert time.monotonic() - began < 5  # of the 32 s that answers under way have
        for sent, reader in answers:
            answer = await reader.read()
            assert answer == b"" or b"shutting_down" in answer or sent == over_asgi


async def test_no_query_stands_in_the_access_log(tmp_path: Path, writer: Writer) -> None:
    async with served(tmp_path, "--access-log") as gateway:
        gateway.triton.play(*(Say((token_id,)) for token_id in writer.ids("Paris")), EndToken())
        async with httpx.AsyncClient(base_url=gateway.url.removesuffix("/v1")) as client:
            body = {"model": "tiny", "messages": HELLO}
            assert (await client.post("/v1/chat/completions?api_key=secret", json=body)).status_code == 200
            assert (await client.get("/v1/models?api_key=secret")).status_code == 200
            assert (await client.get("/health?api_key=secret")).status_code == 200
        gateway.process.send_signal(signal.SIGTERM)
        _, log = await gateway.end()
    lines = [line.partition("- ")[2] for line in log.splitlines() if "uvicorn.access" in line]
    assert lines == [
        '"POST /v1/chat/completions HTTP/1.1" 200',
        '"GET /v1/models HTTP/1.1" 200',
        '"GET /health HTTP/1.1" 200',
    ]
    assert "secret" not in log


async def test_with_all_descriptors_used_up_a_probe_is_answered_and_the_log_says_so(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    async with served(tmp_path, before=limit) as gateway, AsyncExitStack() as clients:
        port = httpx.URL(gateway.url).port
        for _ in range(300):
            _, idle = await asyncio.open_connection("127.0.0.1", port)
            clients.callback(idle.close)
        async with asyncio.timeout(20), httpx.AsyncClient(base_url=gateway.url.removesuffix("/v1")) as probe:
            while True:  # until those beyond are gone
                with suppress(httpx.TransportError):
                    assert (await probe.get("/health", timeout=5)).status_code == 200
                    break
                await asyncio.sleep(0.1)
            answer = await probe.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
        gateway.process.send_signal(signal.SIGTERM)
        code, log = await gateway.end()
    assert code == 0
    assert log.count("connections are open") == 1


async def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = write_config(tmp_path)
        config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        code, log = await run(config)
    assert (code, log) == (1, f"crossover serve: cannot listen on 127.0.0.1:{port}: Address already in use\n")


async def test_a_second_gateway_on_one_state_folder_names_the_first(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        code, log = await run(tmp_path / "crossover.yaml")
        first = gateway.process.pid
        assert (code, log) == (
            1,
            f"crossover serve: the gateway with pid {first} keeps its state in {tmp_path}/state\n",
        )
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{gateway.url}/models")).status_code == 200
        gateway.process.kill()  # and the folder is free at once, whatever its workers have still to answer
        await gateway.end()
        async with served(tmp_path):
            pass


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


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
async def test_a_policy_set_over_http_is_in_force_after_a_kill(tmp_path: Path, options: tuple[str, ...]) -> None:
    async with httpx.AsyncClient() as operator:
        async with served(tmp_path, *options) as gateway:
            policy = {"low": "triton", "high": "vllm", "up": 90, "down": 80, "by": "alice", "calibration": "run-7"}
            answer = await operator.put(f"{gateway.url}/../admin/policy", json=policy)
            gateway.process.kill()
        async with served(tmp_path, *options) as gateway:
            assert (await operator.get(f"{gateway.url}/../admin/policy")).json() == answer.json()
            assert answer.json()["version"] == 2
