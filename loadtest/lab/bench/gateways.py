"""The gateways of a run as processes: found, started, and answering before anything is measured."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from loadtest.lab.bench.cpus import CpuPlan
from loadtest.lab.bench.systems import DIRECT, Site, System
from loadtest.mock_engine.engine import MODEL
from loadtest.mock_engine.http import fetch, free_ports
from loadtest.mock_engine.process import Child, wait_until_ready

START_TIMEOUT_S = 120.0  # LiteLLM imports for half a minute
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """A system and its command on this machine."""

    system: System
    program: Path

    @property
    def version(self) -> str:
        return self.system.version(self.program)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that answers; without a child it is the mock engine itself."""

    system: System
    port: int
    child: Child | None = None

    @property
    def pids(self) -> list[int]:
        return self.child.pids() if self.child else []


def look_for(systems: Sequence[System], places: Mapping[str, Path]) -> tuple[list[Found], list[str]]:
    """Returns the systems that are installed, and a line on each that is not."""
    found, missing = [], []
    for system in systems:
        program = Path() if system is DIRECT else system.find(places)
        if program is None:
            missing.append(f"{system.name} is not installed and left out; to have it: {system.install}")
        else:
            found.append(Found(system, program))
    return found, missing


@dataclass(frozen=True, slots=True)
class GatewayLauncher:
    """Starts gateways for the engine at `engine_url`, `engine_port`, `engine_socket`. `folder`: the run's folder."""

    engine_url: str
    engine_port: int
    folder: Path
    tokenizer: Path
    cpus: CpuPlan
    engine_socket: Path | None = None

    @contextmanager
    def running(self, found: Found) -> Iterator[Gateway]:
        """Starts a gateway, which answers within the block. Raises CannotMeasure if it does not start."""
        system = found.system
        if system.launch is None:
            yield Gateway(system, self.engine_port)
            return
        [port] = free_ports(1)
        folder = self.folder / system.name
        folder.mkdir(parents=True, exist_ok=True)
        site = Site(found.program, port, self.engine_url, folder, self.tokenizer, system.workers, self.engine_socket)
        with Child(system.launch(site), folder / "log", self.cpus.of(system.workers)) as child:
            wait_until_ready(system.name, child, partial(request_answer, port), START_TIMEOUT_S)
            time.sleep(SETTLE_S)
            yield Gateway(system, port, child)


def request_answer(port: int) -> None:
    """Requests one small chat completion. Raises OSError if it is refused."""
    message = {"role": "user", "content": "Where do rivers end?"}
    body = orjson.dumps({"model": MODEL, "messages": [message], "max_tokens": 4})
    fetch(f"http://127.0.0.1:{port}/v1/chat/completions", body)
