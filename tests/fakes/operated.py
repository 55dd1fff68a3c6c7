"""The operator's routes on a real socket, over a real Router whose backends are scripted; no inference routes.

Served from a thread of its own, so that synchronous clients (the command line) can be tested against it.
"""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from gateway.access import Access
from gateway.core import GenerateRequest, Policy, Prompt, SamplingParams
from gateway.evidence import LatestEvidence
from gateway.metrics import Metrics
from gateway.operator import install_operator
from gateway.routing.policies import Threshold
from gateway.settings import ModelSettings, ProbeSettings, Settings
from gateway.shared import Seat
from tests.fakes.alone import make_fleet, make_roster, make_router
from tests.fakes.backend import ScriptedBackend, described
from tests.fakes.tally import make_tally

POLICY = Threshold(low="triton", high="vllm", up=48, down=40)
PROBE = ProbeSettings(interval_s=0.02, down_interval_s=0.01)


@dataclass
class Operated:
    """A gateway's control side: `models` maps an id to its policy, None for one with a single backend, vllm.

    `dry`: the policy on trial of each model that has a policy.
    """

    models: Mapping[str, Threshold | None] = field(default_factory=lambda: {"llama": POLICY})
    key: str | None = None
    dry: Policy | None = None
    url: str = ""

    def __post_init__(self) -> None:
        self._is_watching = threading.Event()
        self.backends = {
            model: {name: ScriptedBackend(name) for name in (("triton", "vllm") if policy else ("vllm",))}
            for model, policy in self.models.items()
        }
        self.router = make_router(
            make_fleet(
                ModelSettings(model, Path(), described(self.backends[model]), policy, policy and self.dry),
                self.backends[model],
                PROBE,
            )
            for model, policy in self.models.items()
        )

    def request(self, pin: str | None = None, run: str | None = None, model: str = "llama") -> GenerateRequest:
        return GenerateRequest("id", model, Prompt((1,)), SamplingParams(max_tokens=1), (0,), pin=pin, run=run)

    def app(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with self.router.watching():
                self._is_watching.set()
                yield

        app = FastAPI(lifespan=lifespan)
        access = Access.open(Settings((), operator_key=self.key))
        install_operator(
            app,
            self.router,
            Metrics(make_tally(self.backends), self.router.flows(), make_roster()),
            access,
            LatestEvidence((), Seat.alone()),
        )
        return app

    @contextmanager
    def serving(self) -> Iterator["Operated"]:
        """`url` is set inside."""
        config = uvicorn.Config(self.app(), port=0, log_level="warning", ws="none")
        server = uvicorn.Server(config)
        socket = config.bind_socket()
        self.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
        thread.start()
        try:
            assert self._is_watching.wait(20)
            yield self
        finally:
            server.should_exit = True
            thread.join()
            socket.close()
