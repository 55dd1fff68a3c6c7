"""One model `llama` over two scripted backends, with a clock that stands still until a test moves it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from gateway.core import GenerateRequest, Prompt, SamplingParams
from gateway.routing import Fleet, Router
from gateway.settings import ModelSettings, ProbeSettings, ThresholdSettings
from tests.fakes.backend import ScriptedBackend

PROBE = ProbeSettings(interval_s=0.02, down_interval_s=0.01)
RequestFactory: TypeAlias = Callable[..., GenerateRequest]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    """A router and what stands around it. `ready` sets what routing believes, without a probe."""

    policy: ThresholdSettings | None
    names: tuple[str, ...] = ("triton", "vllm")
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.backends = {name: ScriptedBackend(name) for name in self.names}
        settings = ModelSettings("llama", Path(), {}, self.policy)
        self.fleet = Fleet(settings, self.backends, PROBE, self.clock)
        self.router = Router([self.fleet])
        self.ready(*self.names)

    def ready(self, *names: str) -> None:
        for name, health in self.fleet.healths.items():
            health.is_ready = name in names


@pytest.fixture
def node() -> Node:
    return Node(ThresholdSettings(low="triton", high="vllm", up=4, down=2, dwell_s=0))


@pytest.fixture
def make_node() -> Callable[..., Node]:
    return Node


@pytest.fixture
def request_of() -> RequestFactory:
    def make(pin: str | None = None, run: str | None = None, model: str = "llama") -> GenerateRequest:
        return GenerateRequest("id", model, Prompt((1, 2)), SamplingParams(max_tokens=3), (1,), pin=pin, run=run)

    return make
