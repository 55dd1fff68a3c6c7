"""Runs worker.py in a Python with torch: reads its lines as they come, and ends it with all its ranks.

In: a Group. Out: samples, or FabricError with the worker's error. Knows no bandwidth and no model.
"""

import json
import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from engines.fabric.curve import Sample
from engines.fabric.findings import Gpu, Machine

WORKER = Path(__file__).with_name("worker.py")
WRONG_SUM = 3  # the worker's exit code
GRACE_S = 5.0
MAX_ERROR = 500  # characters
ERROR = re.compile(r"(rank \d+: |[\w.]*(Error|Exception)\b)")


class FabricError(Exception):
    """The measurement could not be made; the message is the whole report."""


class WrongSum(FabricError):
    """The measurement was made, and an all-reduce gave a wrong sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`devices`: one for each rank, None is the CPU. `window_s`: the shortest timed loop. `silence_s`: a group that
    writes no line for so long counts as hung; NCCL's own calls give up by then.
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
    def samples(self) -> int:
        return len(self.sizes) * len(self.ways) * self.repeats

    def __str__(self) -> str:
        return f"{self.backend} with {len(self.devices)} ranks"


def describe_machine(python: str) -> Machine:
    """Returns the machine as that Python's torch reports it. Raises FabricError if it has no torch that works."""
    try:
        described = subprocess.run(
            [python, str(WORKER), "describe"], capture_output=True, text=True, check=False, env=_make_environment()
        )
    except OSError as exc:
        raise FabricError(f"--python {python} cannot be started: {exc.strerror}") from exc
    if described.returncode:
        raise FabricError(f"--python {python} does not run torch: {_find_error(described.stderr)}")
    fields = next(_parse(described.stdout.encode().splitlines()))
    gpus, peers = [Gpu(**gpu) for gpu in fields.pop("gpus")], [(a, b) for a, b in fields.pop("peers")]
    return Machine(**fields, gpus=gpus, peers=peers)


def measure(group: Group) -> Iterator[Sample]:
    """Yields samples as they come. Raises FabricError. However this ends, no process of the group is left."""
    with tempfile.TemporaryDirectory(prefix="crossover-fabric-") as folder:
        job = json.dumps(asdict(group) | {"meeting": str(Path(folder, "meeting"))})
        log = Path(folder, "log")
        with log.open("wb") as errors:
            worker = subprocess.Popen(
                [group.python, str(WORKER), "measure", job],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_make_environment(),
                start_new_session=True,
            )
        missing, grace_s = group.samples, 0.0
        try:
            for line in _read_lines(worker, group):
                if "seconds" in line:  # all other lines only show that it goes on
                    yield Sample(line["way"], line["bytes"], line["seconds"])
                    missing -= 1
                if not missing:
                    grace_s = GRACE_S
                    return
            raise _explain(worker, group, log)
        finally:
            _end(worker, grace_s)


def _read_lines(worker: subprocess.Popen[bytes], group: Group) -> Iterator[dict[str, Any]]:  # Any: the worker's JSON
    """Yields the worker's lines until all ranks have closed their end. Raises FabricError if it is silent too long."""
    stream, rest = _find_stdout(worker), b""
    while select.select([stream], [], [], group.silence_s)[0]:
        read = os.read(stream.fileno(), 1 << 16)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        yield from _parse(lines)
    raise FabricError(f"{group} wrote nothing for {group.silence_s:g} s: is a link down?")


def _find_stdout(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdout is not None
    return worker.stdout


def _explain(worker: subprocess.Popen[bytes], group: Group, log: Path) -> FabricError:
    with suppress(subprocess.TimeoutExpired):
        worker.wait(GRACE_S)
    if not worker.returncode:
        return FabricError(f"{group}: ended before it was done")
    kind = WrongSum if worker.returncode == WRONG_SUM else FabricError
    return kind(f"{group}: ended with exit code {worker.returncode}: {_find_error(log.read_text(errors='replace'))}")


def _end(worker: subprocess.Popen[bytes], grace_s: float) -> None:
    """Kills a group that does not end by itself: a rank that hangs in a call of NCCL's reacts to no gentler signal."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    _find_stdout(worker).close()


def _make_environment() -> dict[str, str]:
    """Returns our environment with NCCL's settings and a safe path: torch must not import our modules as its own."""
    return os.environ | {"PYTHONSAFEPATH": "1"}  # noqa: TID251 - a launcher hands it on


def _parse(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:  # Any: as above
    """Yields the worker's lines; NCCL_DEBUG writes others between them."""
    yield from (json.loads(line) for line in lines if line.startswith(b"{"))


def _find_error(log: str) -> str:
    """The last line that names an error; libraries go on logging after it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ["it wrote nothing"])[-1][:MAX_ERROR]
