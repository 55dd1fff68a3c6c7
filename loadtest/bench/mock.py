"""The mock engine as a process: how it is to send tokens, and whether it still sends any."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from loadtest.bench.http import fetch
from loadtest.bench.processes import Child, Launch

MODEL = "bench/mock-8b"


@dataclass(frozen=True, slots=True)
class Pace:
    """How tokens leave: one per `interval_us` and stream, streams spread over `groups`; 0: as fast as they go.

    `lockstep`: the next leaves when the client has read the one before. `batch`: tokens of a stream in one write, where
    they go as fast as they go. `fault`, at every `every`th token, is for tests.
    """

    interval_us: int = 0
    groups: int = 8
    lockstep: bool = False
    fault: str = "none"
    every: int = 1000
    batch: int = 1

    def query(self) -> str:
        return (
            f"interval_us={self.interval_us}&groups={self.groups}&lockstep={self.lockstep:d}"
            f"&fault={self.fault}&every={self.every}&batch={self.batch}"
        )


@dataclass(frozen=True, slots=True)
class IdSpace:
    """Where a tokenizer keeps the ids that stand for times, and those that stand for places (native/wire.h)."""

    first_time: int
    first_place: int


class MockEngine:
    """A running mock, on a port and at a socket in the file system; leaving the block ends it.

    `acks`: the file through which a client in lockstep answers.
    """

    def __init__(self, program: Path, port: int, folder: Path, ids: IdSpace, cpus: Sequence[int] = ()) -> None:
        self.port = port
        self.acks = folder / "acks"
        self._home = tempfile.TemporaryDirectory(prefix="crossover-bench-")  # a socket's path has 107 bytes at most
        self.socket = Path(self._home.name, "engine.sock")
        argv = [str(program), "--port", str(port), "--acks", str(self.acks), "--model", MODEL]
        argv += ["--socket", str(self.socket)]
        argv += ["--time-ids", str(ids.first_time), "--place-ids", str(ids.first_place)]
        self.child = Child(Launch(argv), folder / "mock.log", cpus)

    def __enter__(self) -> "MockEngine":
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, pace: Pace) -> None:
        fetch(f"{self.url}/bench/set?{pace.query()}")

    def state(self) -> dict[str, Any]:  # Any: JSON
        state: dict[str, Any] = orjson.loads(fetch(f"{self.url}/bench/state"))
        return state

    def drain(self, limit_s: float = 8.0) -> int:
        """Until every stream that the client left is let go of; how many had to be cut off after `limit_s`.

        Tokens flow meanwhile: that is how many gateways notice.
        """
        self.set(Pace(interval_us=5000))
        give_up_at = time.monotonic() + limit_s
        while (running := int(self.state()["running"])) and time.monotonic() < give_up_at:
            time.sleep(0.1)
        if running:
            fetch(f"{self.url}/bench/set?cut=1")
        return running

    def _end(self) -> None:
        self.child.end()
        self._home.cleanup()

    def _wait(self) -> None:
        for _ in range(100):
            try:
                self.state()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError(f"the mock engine does not answer: {self.child.last_words()}")
