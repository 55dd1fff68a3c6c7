"""A gateway before two engines that speak OpenAI's API, served as `crossover serve` does or by an ordinary uvicorn."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import cast

import uvicorn

from gateway.api import Downstream, RelayLane
from gateway.app import App, compose
from gateway.backends.relay import RelayServer
from gateway.routing import Fleet
from gateway.routing.policies import Threshold
from gateway.settings import LimitSettings, ModelSettings, ProbeSettings, RelaySettings, Settings
from tests.api.conftest import LIMITS, MODEL, QuietServer, eventually, live_tasks
from tests.fakes.openai import FakeOpenAI

SERVERS: dict[str, type[asyncio.Protocol] | str] = {"direct": Downstream, "httptools": "httptools", "h11": "h11"}


@dataclass(slots=True)
class RelayStack:
    """What a test works with. `low` answers at first; `high` takes over at five in flight."""

    low: FakeOpenAI
    high: FakeOpenAI
    servers: dict[str, RelayServer]
    app: App
    port: int = 0
    is_direct: bool = True
    connections: Callable[[], Collection[Downstream]] = tuple  # of clients, open

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def in_flight(self) -> dict[str, int]:
        return {name: backend.in_flight for name, backend in self.app.router.model_state(MODEL).backends.items()}

    @property
    def is_idle(self) -> bool:
        """No lease, no call, no request at an engine, and no connection to one but those kept for the next request."""
        return (
            not any(self.in_flight.values())
            and not any(len(server.calls) for server in self.servers.values())
            and not self.low.live
            and not self.high.live
            and all("connecting=0 busy=0" in repr(server.client) for server in self.servers.values())
        )

    async def settle(self, within_s: float = 5.0) -> None:
        await eventually(lambda: self.is_idle, within_s)

    def counted(self, backend: str, outcome: str, times: int = 1) -> bool:
        """Whether the metrics hold exactly so many requests of that outcome."""
        line = f'crossover_requests_total{{backend="{backend}",model="{MODEL}",outcome="{outcome}"}} {times}.0'
        return line in self.app.metrics.render().decode()


def _make(low: FakeOpenAI, high: FakeOpenAI, limits: LimitSettings, operator_key: str | None) -> RelayStack:
    backends = {
        name: RelaySettings(name, engine.url, connect_timeout_s=5.0, idle_timeout_s=60.0)
        for name, engine in (("low", low), ("high", high))
    }
    policy = Threshold(low="low", high="high", up=5, down=2, dwell_s=0)
    model = ModelSettings(id=MODEL, tokenizer=None, backends=backends, policy=policy)
    settings = Settings((model,), "127.0.0.1:0", limits=limits, operator_key=operator_key)
    servers = {name: RelayServer(backend) for name, backend in backends.items()}
    fleet = Fleet(model, servers, ProbeSettings(interval_s=0.05, down_interval_s=0.02))
    return RelayStack(low, high, servers, compose(settings, {MODEL: RelayLane(servers)}, [fleet]))


@asynccontextmanager
async def relaying(
    server: str = "direct", limits: LimitSettings = LIMITS, operator_key: str | None = None
) -> AsyncIterator[RelayStack]:
    """In the end nothing may be left: no lease, no call, no connection in use, no task."""
    async with AsyncExitStack() as opened:
        low = await opened.enter_async_context(FakeOpenAI().serving())
        high = await opened.enter_async_context(FakeOpenAI().serving())
        stack = _make(low, high, limits, operator_key)
        for relay in stack.servers.values():
            opened.push_async_callback(relay.aclose)
        await opened.enter_async_context(stack.app.router.watching())
        uvicorn_ = await opened.enter_async_context(serving(stack.app, server))
        stack.port = uvicorn_.servers[0].sockets[0].getsockname()[1]
        stack.connections = lambda: cast("Collection[Downstream]", uvicorn_.server_state.connections)
        stack.is_direct = server == "direct"
        before = client_tasks()
        yield stack
        await stack.settle()
        await eventually(lambda: client_tasks() <= before)


def client_tasks() -> set[str]:
    """Tasks alive but those of the fake engines, which have one for each connection, and probes."""
    ours = ("FakeOpenAI.", "Client._connect", "Health")
    return {name for name in live_tasks() if not name.startswith(ours)}


@asynccontextmanager
async def serving(app: App, http: str) -> AsyncIterator[QuietServer]:
    config = uvicorn.Config(
        app, port=0, loop="none", http=SERVERS[http], ws="none", lifespan="off", log_config=None, proxy_headers=False
    )
    server = QuietServer(config)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            await eventually(lambda: server.started)
            yield server
            server.should_exit = True
    finally:
        server.break_off()
