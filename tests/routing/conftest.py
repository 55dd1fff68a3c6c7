"""One model `llama` over two scripted backends, with a clock that stands still until a test moves it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from gateway.core import GenerateRequest, Need, Policy, Prompt, SamplingParams
from gateway.routing.policies import Curve, Share, Threshold
from gateway.settings import ModelSettings, ProbeSettings, QueueSettings
from tests.fakes.alone import make_fleet, make_router
from tests.fakes.backend import ScriptedBackend, described

PROBE = ProbeSettings(interval_s=0.02, down_interval_s=0.01)
NO_QUEUE = QueueSettings(max_wait_s=0)
PLAIN = GenerateRequest("id", "llama", Prompt((1, 2)), SamplingParams(max_tokens=3), (1,))
request_of: Callable[..., GenerateRequest] = partial(replace, PLAIN)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    """A router and what stands around it. `ready` and `forget` set what routing believes, without a probe.

    `able`: what backends can do, for those that cannot do everything.
    """

    policy: Threshold | Share | Curve | None
    names: tuple[str, ...] = ("triton", "vllm")
    clock: Clock = field(default_factory=Clock)
    able: Mapping[str, Collection[Need]] = field(default_factory=dict)
    dry: Policy | None = None
    queue: QueueSettings = NO_QUEUE

    def __post_init__(self) -> None:
        self.backends = {name: ScriptedBackend(name) for name in self.names}
        for name, needs in self.able.items():
            self.backends[name].capabilities = frozenset(needs)
        settings = ModelSettings("llama", Path(), described(self.names), self.policy, self.dry, queue=self.queue)
        self.fleet = make_fleet(settings, self.backends, PROBE, self.clock)
        self.router = make_router([self.fleet])
        self.ready(*self.names)

    def ready(self, *names: str) -> None:
        for name, health in self.fleet.healths.items():
            health.is_ready = name in names
            health.was_ready |= health.is_ready

    def forget(self, *names: str) -> None:
        """As if these had never been ready."""
        for name in names:
            self.fleet.healths[name].is_ready = self.fleet.healths[name].was_ready = False


@pytest.fixture
def node() -> Node:
    return Node(Threshold(low="triton", high="vllm", up=4, down=2, dwell_s=0))
