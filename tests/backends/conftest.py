"""Both adapters, each connected by a real socket, which can be cut, to a scripted server of its protocol."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from gateway.backends.rpc.h2_client import H2Client
from gateway.backends.triton import TritonBackend
from gateway.backends.vllm import VLLMBackend
from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams
from gateway.errors import GatewayError
from gateway.settings import TritonSettings, VLLMSettings
from tests.fakes.script import FakeEngine
from tests.fakes.sink import RecordingSink, settled
from tests.fakes.triton import FakeTriton
from tests.fakes.vllm import FakeVLLM
from tests.fakes.wire import Wire

END_ID, OTHER_END_ID = 2, 3

REQUEST = GenerateRequest(
    "req-1", "m", Prompt((11, 12, 13)), SamplingParams(max_tokens=32), eos_token_ids=(END_ID, OTHER_END_ID)
)


@pytest.fixture(scope="session", params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Adapters depend on how the event loop handles sockets: tests run on uvloop, as in production, and on asyncio."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: object) -> AsyncIterator[None]:
    """One loop for all tests: grpc.aio's poller, shared by the whole process, would go on using closed loops."""
    yield  # noqa: PT022 - being an async generator it is what keeps the loop open


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for localhost, and who trusts it."""

    key: Path
    chain: Path

    @property
    def credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.chain.read_bytes())])

    def connect(self, port: int) -> H2Client:
        tls = ssl.create_default_context(cafile=str(self.chain))
        tls.set_alpn_protocols(["h2"])
        return H2Client("localhost", port, connect_timeout_s=5.0, tls=tls)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("certificate")
    key, chain = folder / "key.pem", folder / "chain.pem"
    command = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"),
        *("-keyout", str(key), "-out", str(chain)),
    )
    subprocess.run(command, check=True, capture_output=True)
    return Certificate(key, chain)


class Lane:
    """An adapter, its engine and the connection between them; `ask` starts a call."""

    def __init__(self, backend: TritonBackend | VLLMBackend, engine: FakeEngine, wire: Wire) -> None:
        self.backend = backend
        self.engine = engine
        self.wire = wire
        self.sinks: list[RecordingSink] = []

    def ask(
        self,
        request: GenerateRequest = REQUEST,
        *,
        reaction: Callable[[RecordingSink], None] | None = None,
        **params: object,
    ) -> RecordingSink:
        sink = RecordingSink(reaction)
        self.sinks.append(sink)
        changed = replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]  # by name
        sink.call = None
        sink.call = self.backend.start(changed, sink)
        return sink

    async def answer(self, **params: object) -> tuple[FinishReason | GatewayError, list[int]]:
        sink = self.ask(**params)  # type: ignore[arg-type]  # by name
        return await sink.ended(), sink.token_ids

    async def idle(self) -> None:
        """Wait until neither side holds anything for a call."""
        await settled(lambda: self.engine.running == 0, f"{self.engine.running} answers still running")
        await settled(lambda: len(self.backend.calls) == 0, repr(self.backend))


@pytest.fixture(params=["triton", "triton over TLS", "vllm", "vllm at a socket", "vllm without generate"])
async def lane(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lane]:
    """Checks after every test that the contract was kept, and that closing leaves no task and no connection."""
    async with AsyncExitStack() as stack:
        tls = request.getfixturevalue("certificate") if request.param.endswith("TLS") else None
        fake = FakeTriton(credentials=tls and tls.credentials) if request.param.startswith("triton") else FakeVLLM()
        engine: FakeTriton | FakeVLLM = await stack.enter_async_context(fake.serving())
        socket = tmp_path / "engine.sock" if request.param.endswith("socket") else None
        wire = await stack.enter_async_context(Wire(engine.port, socket).laid())
        backend = make_backend(request.param, wire, tls)
        if isinstance(engine, FakeVLLM):
            engine.has_generate = request.param != "vllm without generate"
        lane = Lane(backend, engine, wire)
        yield lane
        await backend.aclose()
        assert [sink.breaches for sink in lane.sinks if sink.breaches] == []
        await settled(lambda: wire.connections == 0, f"{wire.connections} connections left open")
        await settled(lambda: not client_tasks(), f"tasks left: {client_tasks()}")


@pytest.fixture
async def served() -> AsyncIterator[tuple[FakeVLLM, VLLMBackend]]:
    async with FakeVLLM().serving() as engine:
        backend = VLLMBackend(VLLMSettings("vllm", f"http://127.0.0.1:{engine.port}"))
        yield engine, backend
        await backend.aclose()


def client_tasks() -> list[str]:
    """Running tasks that belong neither to the test runner nor to a fake server."""
    names = [str(getattr(task.get_coro(), "__qualname__", task)) for task in asyncio.all_tasks()]
    return [name for name in names if not name.startswith(("TestRunner.", "AioServer.", "_Connection._play"))]


def make_backend(
    kind: str, wire: Wire, tls: Certificate | None = None, idle_timeout_s: float = 60.0
) -> TritonBackend | VLLMBackend:
    if kind == "triton":
        url = f"grpc://127.0.0.1:{wire.port}"
        return TritonBackend(TritonSettings("triton", url, connect_timeout_s=5.0, idle_timeout_s=idle_timeout_s))
    if tls is not None:
        settings = TritonSettings("triton", "grpcs://unused:1", idle_timeout_s=idle_timeout_s)
        return TritonBackend(settings, tls.connect(wire.port))
    return VLLMBackend(VLLMSettings("vllm", wire.url, connect_timeout_s=5.0, idle_timeout_s=idle_timeout_s))
