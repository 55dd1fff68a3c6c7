"""A gateway before two engines that speak OpenAI's API, served as `crossover serve` does or by an ordinary uvicorn."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.app import compose
from gateway.backends.relay import RelayServer
from gateway.client_http import ClientConnection
from gateway.routing.policies import Threshold
from gateway.serving import RelayLane
from gateway.settings import LimitSettings, ModelSettings, ProbeSettings, QueueSettings, RelaySettings, Settings
from tests.fakes.alone import make_fleet
from tests.fakes.openai import FakeOpenAI
from tests.serving.stack import LIMITS, MODEL, ServedApp, eventually, live_tasks, serving

# Over ASGI one server of uvicorn's own stands for all.
SERVERS: dict[str, type[asyncio.Protocol] | str] = {"direct": ClientConnection, "h11": "h11"}


@dataclass(slots=True)
class RelayStack(ServedApp):
    """`low` answers at first; `high` takes over at five in flight."""

    low: FakeOpenAI
    high: FakeOpenAI
    servers: dict[str, RelayServer]
    is_direct: bool = True
    connections: Callable[[], Collection[ClientConnection]] = tuple  # of clients, open

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


def _make(
    low: FakeOpenAI, high: FakeOpenAI, limits: LimitSettings, **others: Any
) -> RelayStack:  # Any: of the settings
    backends = {
        name: RelaySettings(name, engine.url, connect_timeout_s=5.0, idle_timeout_s=60.0)
        for name, engine in (("low", low), ("high", high))
    }
    policy = Threshold(low="low", high="high", up=5, down=2, dwell_s=0)
    model = ModelSettings(id=MODEL, tokenizer=None, backends=backends, policy=policy, queue=QueueSettings(max_wait_s=0))
    servers = {name: RelayServer(backend) for name, backend in backends.items()}
    fleet = make_fleet(model, servers, ProbeSettings(interval_s=0.05, down_interval_s=0.02))
    app = compose(Settings((model,), "127.0.0.1:0", limits=limits, **others), {MODEL: RelayLane(servers)}, [fleet])
    return RelayStack(low, high, servers, app=app)


@asynccontextmanager
async def relaying(
    server: str = "direct",
    limits: LimitSettings = LIMITS,
    **others: Any,  # Any: of the settings
) -> AsyncIterator[RelayStack]:
    """In the end nothing may be left: no lease, no call, no connection in use, no task."""
    async with AsyncExitStack() as opened:
        low = await opened.enter_async_context(FakeOpenAI().serving())
        high = await opened.enter_async_context(FakeOpenAI().serving())
        stack = _make(low, high, limits, **others)
        for relay in stack.servers.values():
            opened.push_async_callback(relay.aclose)
        await opened.enter_async_context(stack.app.router.watching())
        served = await opened.enter_async_context(serving(stack.app, SERVERS[server]))
        stack.port, stack.connections = served.port, lambda: served.clients
        stack.is_direct = server == "direct"
        before = client_tasks()
        yield stack
        await stack.settle()
        await eventually(lambda: client_tasks() <= before)


def client_tasks() -> set[str]:
    """Tasks alive but those of the fake engines, which have one for each connection, and probes."""
    ours = ("FakeOpenAI.", "Client._connect", "Health")
    return {name for name in live_tasks() if not name.startswith(ours)}
