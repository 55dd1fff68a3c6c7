"""The paced mock engine as a process: a pace in, an endpoint whose figures are known out."""

import time
from pathlib import Path
from types import TracebackType

import orjson

from loadtest.agreement.workload import Pace
from loadtest.bench.http import fetch
from loadtest.bench.processes import Child, Launch

MODEL = "bench/paced"


class PacedEngine:
    """A running native/paced.c. Leaving the block ends it."""

    def __init__(self, program: Path, port: int, log: Path, pace: Pace) -> None:
        self.url = f"http://127.0.0.1:{port}"
        argv = [str(program), "--port", str(port), "--model", MODEL]
        argv += ["--ttft-us", str(round(pace.ttft_s * 1e6)), "--interval-us", str(round(pace.interval_s * 1e6))]
        self.child = Child(Launch(argv), log)

    def __enter__(self) -> "PacedEngine":
        try:
            self._wait()
        except BaseException:
            self.child.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.end()

    def late_s(self) -> float:
        """By how much the tokens since this was last asked left late, on average: other processes had its CPU."""
        return float(orjson.loads(fetch(f"{self.url}/paced/state"))["mean_late_us"]) / 1e6

    def _wait(self) -> None:
        for _ in range(100):
            try:
                fetch(f"{self.url}/health")
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError(f"the paced engine does not answer: {self.child.last_words()}")
