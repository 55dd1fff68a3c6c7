"""The gateways of a run as processes: found, started, and answering before anything is measured."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from loadtest.bench.cpus import Seats
from loadtest.bench.errors import BenchError
from loadtest.bench.http import fetch, free_ports
from loadtest.bench.mock import MODEL
from loadtest.bench.processes import Child
from loadtest.bench.systems import DIRECT, Site, System

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
    """One that answers; without a child it is the mock engine itself."""

    system: System
    port: int
    child: Child | None = None

    @property
    def pids(self) -> list[int]:
        return self.child.pids() if self.child else []


def look_for(systems: Sequence[System], places: Mapping[str, Path]) -> tuple[list[Found], list[str]]:
    """Those that are installed, and a line on each that is not."""
    found, missing = [], []
    for system in systems:
        program = Path() if system is DIRECT else system.find(places)
        if program is None:
            missing.append(f"{system.name} is not installed and left out; to have it: {system.install}")
        else:
            found.append(Found(system, program))
    return found, missing


@dataclass(frozen=True, slots=True)
class Hall:
    """Where gateways are started: the engine they talk to, the run's folder, the tokenizer, the CPUs."""

    engine_url: str
    engine_port: int
    folder: Path
    tokenizer: Path
    seats: Seats
    engine_socket: Path | None = None

    def at(self, engine_url: str, engine_port: int) -> "Hall":
        """The same with another engine."""
        return replace(self, engine_url=engine_url, engine_port=engine_port)

    @contextmanager
    def running(self, found: Found) -> Iterator[Gateway]:
        """Started and answering within the block. Raises BenchError if it does not come to that."""
        system = found.system
        if system.launch is None:
            yield Gateway(system, self.engine_port)
            return
        [port] = free_ports(1)
        folder = self.folder / system.name
        folder.mkdir(parents=True, exist_ok=True)
        site = Site(found.program, port, self.engine_url, folder, self.tokenizer, system.workers, self.engine_socket)
        with Child(system.launch(site), folder / "log", self.seats.of(system.workers)) as child:
            _wait(system, port, child)
            yield Gateway(system, port, child)


def _wait(system: System, port: int, child: Child) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    complaint = "nothing"
    while time.monotonic() < give_up_at:
        if child.exit_code is not None:
            raise BenchError(f"{system.name} ended with exit code {child.exit_code}: {child.last_words()}")
        try:
            ask(port)
        except OSError as exc:
            complaint = str(exc)
            time.sleep(0.3)
        else:
            time.sleep(SETTLE_S)
            return
    raise BenchError(f"{system.name} does not answer ({complaint}): {child.last_words()}")


def ask(port: int) -> None:
    """One small chat completion. Raises OSError if it is refused."""
    message = {"role": "user", "content": "Where do rivers end?"}
    body = orjson.dumps({"model": MODEL, "messages": [message], "max_tokens": 4})
    fetch(f"http://127.0.0.1:{port}/v1/chat/completions", body)
