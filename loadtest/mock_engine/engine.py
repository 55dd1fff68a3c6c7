"""The mock engine as a process: sets how it sends tokens, reads what it is sending."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from loadtest.mock_engine.http import fetch, free_ports
from loadtest.mock_engine.process import Child, Launch, wait_until_ready

MODEL = "bench/mock-8b"
START_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How tokens are sent: one per stream every `interval_us`, with the streams spread over `groups`; 0: as fast as the
    client reads.

    `lockstep`: the next token is sent when the client has read the one before. `batch`: tokens of a stream in one
    write, without an interval. `fault`: what goes wrong at every `every`th token, for tests.
    """

    interval_us: int = 0
    groups: int = 8
    lockstep: bool = False
    fault: str = "none"
    every: int = 1000
    batch: int = 1

    def query(self) -> str:
        return urlencode(asdict(self) | {"lockstep": int(self.lockstep)})


@dataclass(frozen=True, slots=True)
class IdSpace:
    """The first token id that stands for a time, and the first that stands for a place (native/wire.h)."""

    first_time: int
    first_place: int


@dataclass(frozen=True, slots=True)
class MockEngine:
    """A running mock, on a port and at a socket in the file system. `acks`: the file through which a client in lockstep
    acknowledges tokens.
    """

    child: Child
    port: int
    socket: Path
    acks: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, pace: Pace) -> None:
        fetch(f"{self.url}/bench/set?{pace.query()}")

    def state(self) -> dict[str, Any]:  # Any: JSON
        state: dict[str, Any] = orjson.loads(fetch(f"{self.url}/bench/state"))
        return state

    def drain(self, limit_s: float = 8.0) -> int:
        """Waits until the streams that the client closed have ended. Returns how many it cut off after `limit_s`.

        Tokens are sent meanwhile: many gateways notice only then that a client has closed its stream.
        """
        self.set(Pace(interval_us=5000))
        give_up_at = time.monotonic() + limit_s
        while (running := int(self.state()["running"])) and time.monotonic() < give_up_at:
            time.sleep(0.1)
        if running:
            fetch(f"{self.url}/bench/set?cut=1")
        return running


@contextmanager
def mock_engine(program: Path, folder: Path, ids: IdSpace, cpus: Sequence[int] = ()) -> Iterator[MockEngine]:
    """Starts a mock engine, which answers within the block. Raises CannotMeasure."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="crossover-bench-") as home:  # a socket's path has 107 bytes at most
        socket, acks = Path(home, "engine.sock"), folder / "acks"
        argv = [str(program), "--port", str(port), "--socket", str(socket), "--acks", str(acks), "--model", MODEL]
        argv += ["--time-ids", str(ids.first_time), "--place-ids", str(ids.first_place)]
        with Child(Launch(argv), folder / "mock.log", cpus) as child:
            engine = MockEngine(child, port, socket, acks)
            wait_until_ready("the mock engine", child, engine.state, START_TIMEOUT_S)
            yield engine
