"""A gateway on a real socket before scripted backends; the official client, and a raw one that can misbehave.

Every test ends with a check that nothing is left: no lease, no engine call, no task.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import orjson
import pytest
import uvicorn
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from gateway.app import App, compose
from gateway.client_http import ClientConnection
from gateway.core import FinishReason, GenerateRequest
from gateway.language import ModelLanguage
from gateway.routing.policies import Threshold
from gateway.serving import RelayLane, TokenLane
from gateway.settings import (
    LimitSettings,
    ModelSettings,
    ProbeSettings,
    QueueSettings,
    Settings,
    StreamSettings,
    TritonSettings,
)
from tests.fakes.alone import make_fleet
from tests.fakes.backend import Script, ScriptedBackend, Step

MODEL = "tiny"
TOKENIZER = Path(__file__).parents[2] / "engines" / "reference" / "weights"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
SILENT = StreamSettings()
NO_QUEUE = QueueSettings(max_wait_s=0)
LIMITS = LimitSettings(max_body_bytes=64 * 1024, client_write_timeout_s=1.0)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}  # what `crossover serve` runs on


@pytest.fixture(scope="session")
def language() -> ModelLanguage:
    return ModelLanguage.load(TOKENIZER)


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for is other rooms' state, which has no event
            await asyncio.sleep(0.003)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes scripts: texts as the tokens that a model would generate for them."""

    tokenizer: Tokenizer
    eos: int

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def script(self, text: str, *then: Step) -> Script:
        """The text, one token per turn of the loop, then the end: by default its end token and "stop"."""
        return [*([token_id] for token_id in self.ids(text)), *(then or ([self.eos], FinishReason.STOP))]


@pytest.fixture(scope="session")
def writer(language: ModelLanguage) -> Writer:
    return Writer(Tokenizer.from_file(str(TOKENIZER / "tokenizer.json")), language.eos_token_ids[0])


@dataclass(slots=True, kw_only=True)
class ServedApp:
    """A gateway of the one model MODEL, on a real socket."""

    app: App
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def in_flight(self) -> dict[str, int]:
        return {name: backend.in_flight for name, backend in self.app.router.model_state(MODEL).backends.items()}

    def is_ready(self, backend: str) -> bool:
        return self.app.router.model_state(MODEL).backends[backend].is_ready

    @property
    def metrics(self) -> str:
        return self.app.metrics.render().decode()

    def counted(self, backend: str, outcome: str, times: int = 1) -> bool:
        """Whether the metrics hold exactly so many requests of that outcome."""
        labels = f'backend="{backend}",model="{MODEL}",outcome="{outcome}"'
        return f"crossover_requests_total{{{labels}}} {times}.0" in self.metrics


@dataclass(slots=True)
class Stack(ServedApp):
    """A gateway before scripted backends. `low` answers at first; `high` takes over at five in flight."""

    low: ScriptedBackend
    high: ScriptedBackend

    @property
    def requests(self) -> list[GenerateRequest]:
        """Every generation that was started on either backend."""
        return [call.request for call in self.low.calls + self.high.calls]

    @property
    def is_idle(self) -> bool:
        return not any(self.in_flight.values()) and not self.low.live and not self.high.live

    async def settle(self, within_s: float = 5.0) -> None:
        """Wait until no lease and no engine call is left."""
        await eventually(lambda: self.is_idle, within_s)


class QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals are pytest's

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the date header
        await eventually(lambda: self.should_exit, within_s=60)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, without its pauses; and nothing is cancelled, so what does not end by itself fails the test."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await eventually(lambda: not self.server_state.connections and not self.server_state.tasks)

    @property
    def port(self) -> int:
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def clients(self) -> Collection[ClientConnection]:
        """Their connections, where those are the gateway's own kind."""
        return cast("Collection[ClientConnection]", self.server_state.connections)

    def break_off(self) -> None:
        """After a test that failed: uvloop does not close a loop that still has a server."""
        for server in self.servers:
            server.close()
        for task in self.server_state.tasks:
            task.cancel()
        for connection in self.server_state.connections:
            connection.transport.close()


@asynccontextmanager
async def serving(
    app: ASGIApp, http: type[asyncio.Protocol] | str = ClientConnection, buffer_bytes: int | None = None
) -> AsyncIterator[QuietServer]:
    """uvicorn as `crossover serve` runs it, on a free port; or with an HTTP protocol of its own, then all over ASGI.

    `buffer_bytes`: what a connection takes that its client has no place for; by default the kernel lets it grow.
    """
    # proxy_headers: its middleware would stand between ClientConnection and the app.
    options = {"loop": "none", "ws": "none", "lifespan": "off", "log_config": None, "proxy_headers": False}
    config = uvicorn.Config(app, port=0, http=http, **options)  # type: ignore[arg-type]  # each of its own type
    server = QuietServer(config)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            await eventually(lambda: server.started)
            if buffer_bytes is not None:
                with socket.socket(fileno=os.dup(server.servers[0].sockets[0].fileno())) as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)  # its connections inherit it
            yield server
            server.should_exit = True
    finally:
        server.break_off()


def make_stack(
    language: ModelLanguage,
    limits: LimitSettings = LIMITS,
    operator_key: str | None = None,
    streams: StreamSettings = SILENT,
    *,
    ejection: Literal["on", "off"] = "on",
    queue: QueueSettings = NO_QUEUE,
    max_in_flight: int | None = None,
    **others: Any,  # Any: of the settings
) -> Stack:
    low, high = ScriptedBackend("low"), ScriptedBackend("high")
    backends = {"low": low, "high": high}
    model = ModelSettings(
        id=MODEL,
        tokenizer=TOKENIZER,
        backends={
            name: TritonSettings(name, "grpc://unused:1", max_in_flight=max_in_flight) for name in ("low", "high")
        },
        policy=Threshold(low="low", high="high", up=5, down=2, dwell_s=0),
        ejection=ejection,
        queue=queue,
    )
    settings = Settings((model,), "127.0.0.1:0", limits=limits, operator_key=operator_key, streams=streams, **others)
    fleet = make_fleet(model, backends, ProbeSettings(interval_s=0.05, down_interval_s=0.02))
    return Stack(low, high, app=compose(settings, {MODEL: TokenLane(language, backends, RelayLane({}))}, [fleet]))


def fault(_: GenerateRequest) -> Script:
    """A backend that fails as only a fault of the gateway's own does."""
    raise ZeroDivisionError("secret")


def live_tasks() -> set[str]:
    """Every task but anyio's own, which outlive a test."""
    names = {getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()}
    return {name for name in names if not name.startswith("TestRunner.")}


@asynccontextmanager
async def running(
    stack: Stack, buffer_bytes: int | None = None, http: type[asyncio.Protocol] | str = ClientConnection
) -> AsyncIterator[Stack]:
    async with (
        stack.app.access.keeping(),
        stack.app.router.watching(),
        serving(stack.app, http, buffer_bytes) as server,
    ):
        stack.port = server.port
        before = live_tasks()
        yield stack
        await stack.settle()
        await eventually(lambda: live_tasks() == before)  # a connection being closed has a task until it is


@pytest.fixture
async def stack(language: ModelLanguage, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """`request.param`: whether backends are ejected, if the test sets it."""
    async with running(make_stack(language, ejection=getattr(request, "param", "on"))) as stack:
        yield stack


@dataclass(slots=True)
class RawAnswer:
    """An HTTP answer as bytes, for what the official client hides."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class RawClient:
    """One connection that can stop reading, or break off, at any point."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        fields = {"host": "localhost", "content-length": str(len(body))} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def ask(self, path: str = "/v1/chat/completions", **fields: object) -> None:
        asked = {"messages": HELLO} if path.endswith("chat/completions") else {"prompt": "Hello"}
        self.send("POST", path, orjson.dumps({"model": MODEL, **asked, **fields}))

    async def until(self, marker: bytes) -> bytes:
        return await self.reader.readuntil(marker)

    async def answer(self) -> RawAnswer:
        head = (await self.until(b"\r\n\r\n")).decode()
        status_line, *lines = head.split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        length = headers.get("content-length")
        body = await self._chunks() if length is None else await self.reader.readexactly(int(length))
        return RawAnswer(int(status_line.split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.until(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            await self.until(b"\r\n")
        await self.until(b"\r\n")
        return body

    def stop_reading(self) -> None:
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        return cast("asyncio.Transport", self.writer.transport)  # StreamWriter types it as write-only

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(stack: ServedApp, buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """`buffer_bytes`: what its socket takes that nobody has read; by default as much as the kernel likes, megabytes."""
    connection = socket.socket()
    if buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", stack.port))
    client = RawClient(*await asyncio.open_connection(sock=connection))
    try:
        yield client
    finally:
        if client.writer.transport.get_write_buffer_size():  # closing would wait until the gateway reads it
            client.writer.transport.abort()
        client.writer.close()
        with suppress(ConnectionError):
            await client.writer.wait_closed()


def connect(stack: ServedApp, api_key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=api_key, max_retries=0, timeout=30)


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with connect(stack) as client:
        yield client
