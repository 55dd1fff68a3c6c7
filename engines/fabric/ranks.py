"""The worker's processes: started, listened to, ended. One for each rank, all on this machine.

In: a Group. Out: samples as they come, or FabricError with what the rank said. Knows no bandwidth and no model.
"""

import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from engines.fabric.curve import Sample
from engines.fabric.machine import Gpu, Machine

WORKER = Path(__file__).with_name("worker.py")
WRONG_SUM = 3  # the worker's exit code
GRACE_S = 5.0
TOLD = 500  # characters of what a rank said last
ERROR = re.compile(r"(rank \d+: |[\w.]*(Error|Exception)\b)")


class FabricError(Exception):
    """The measurement could not be made; the message is the whole report."""


class WrongSum(FabricError):
    """It was made, and an all-reduce gave a wrong sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`devices`: of each rank, None is the CPU. `window_s`: least of one timed loop. `silence_s`: how long a group may
    say nothing before it is taken for hung; NCCL's own calls are given up by then.
    """

    python: str
    backend: str
    devices: Sequence[int | None]
    sizes: Sequence[int]
    ways: Sequence[str]
    repeats: int
    window_s: float = 0.02
    silence_s: float = 120.0

    @property
    def ranks(self) -> int:
        return len(self.devices)

    @property
    def samples(self) -> int:
        return len(self.sizes) * len(self.ways) * self.repeats


def describe_machine(python: str) -> Machine:
    """Raises FabricError if that Python has no torch that works."""
    try:
        told = subprocess.run(
            [python, str(WORKER), "describe"], capture_output=True, text=True, check=False, env=_environment()
        )
    except OSError as exc:
        raise FabricError(f"--python {python} cannot be started: {exc.strerror}") from exc
    if told.returncode:
        raise FabricError(f"--python {python} does not run torch: {_last_error(told.stderr)}")
    document = next(_parse(told.stdout.encode().splitlines()))
    gpus = [Gpu(**gpu) for gpu in document["gpus"]]
    peers = [(a, b) for a, b in document["peers"]]
    return Machine(document["torch"], document["cuda"], document["nccl"], gpus, peers, document["settings"])


def measure(group: Group) -> Iterator[Sample]:
    """Samples as rank 0 tells them. Raises FabricError. However this ends, no process of it is left."""
    with Running(group) as running:
        yield from running.listen()


class Running:
    """A group's processes. A context manager: leaving ends them all."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._rest = ExitStack()
        self._is_done = False

    def __enter__(self) -> "Running":
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crossover-fabric-")))
            stack.callback(self._end)
            for rank in range(self._group.ranks):
                self._ranks.append(self._start(rank))
            self._rest = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rest.close()

    def listen(self) -> Iterator[Sample]:
        for line in self._read_lines():
            if "done" in line:
                self._is_done = True
                return
            if "seconds" in line:  # all others say that it goes on
                yield Sample(line["way"], line["bytes"], line["seconds"])
        raise self._explain()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        group = self._group
        job = {
            "rank": rank,
            "ranks": group.ranks,
            "device": group.devices[rank],
            "backend": group.backend,
            "meeting": str(self._folder / "meeting"),
            "sizes": group.sizes,
            "ways": group.ways,
            "repeats": group.repeats,
            "window_s": group.window_s,
            "timeout_s": group.silence_s,
        }
        with self._log(rank).open("wb") as log:
            return subprocess.Popen(
                [group.python, str(WORKER), "measure", json.dumps(job)],
                stdin=subprocess.DEVNULL,
                stdout=log if rank else subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.log"

    def _read_lines(self) -> Iterator[dict[str, Any]]:  # Any: JSON of our own worker
        """Until rank 0 closes its end, or one that failed leaves it waiting."""
        stream, rest = self._stdout, b""
        heard_at = time.monotonic()
        while True:
            if not select.select([stream], [], [], 0.2)[0]:
                if self._has_failed():
                    return
                if time.monotonic() - heard_at > self._group.silence_s:
                    raise FabricError(f"{self._name()} said nothing for {self._group.silence_s:g} s: is a link down?")
                continue
            heard = os.read(stream.fileno(), 1 << 16)
            if not heard:
                return
            heard_at = time.monotonic()
            *lines, rest = (rest + heard).split(b"\n")
            yield from _parse(lines)

    @property
    def _stdout(self) -> IO[bytes]:
        stream = self._ranks[0].stdout
        assert stream is not None
        return stream

    def _has_failed(self) -> bool:
        return any(rank.poll() for rank in self._ranks)

    def _explain(self) -> FabricError:
        """All that ended with an error: one takes the others along, and which was the first is not told."""
        with suppress(subprocess.TimeoutExpired):
            self._ranks[0].wait(0.0 if self._has_failed() else GRACE_S)
        codes = {number: rank.poll() for number, rank in enumerate(self._ranks)}
        failed = [
            f"rank {number} ended with exit code {code}: {self._last_words(number)}"
            for number, code in codes.items()
            if code
        ]
        if WRONG_SUM in codes.values():
            return WrongSum(f"{self._name()}: {'; '.join(failed)}")
        return FabricError(f"{self._name()}: {'; '.join(failed) or 'rank 0 ended before it was done'}")

    def _last_words(self, rank: int) -> str:
        return _last_error(self._log(rank).read_text(errors="replace"))

    def _name(self) -> str:
        return f"{self._group.backend} with {self._group.ranks} ranks"

    def _end(self) -> None:
        """Those that are done may end by themselves; whoever hangs in a call of NCCL's hears no gentler signal."""
        deadline = time.monotonic() + (GRACE_S if self._is_done else 0.0)
        for rank in self._ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
        for rank in self._ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
            if rank.stdout:
                rank.stdout.close()


def _environment() -> dict[str, str]:
    """Ours, NCCL's settings among it. The worker's neighbours here must not pass for modules that torch looks for."""
    return os.environ | {"PYTHONSAFEPATH": "1"}  # noqa: TID251 - a launcher hands it on


def _parse(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:  # Any: as above
    """Those of the worker; NCCL_DEBUG writes others between them."""
    yield from (json.loads(line) for line in lines if line.startswith(b"{"))


def _last_error(log: str) -> str:
    """The last line that names one; libraries go on talking after it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ["it said nothing"])[-1][:TOLD]
