"""Child processes on chosen CPUs: started, measured by /proc, ended with everything they started.

In: a command. Out: a Child. Knows no gateway.
"""

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

GRACE_S = 6.0
LOG_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line. `env` is added to the environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class Child:
    """A process group of its own, pinned to `cpus` where there are any. A context manager: leaving ends it."""

    def __init__(self, launch: Launch, log: Path, cpus: Sequence[int] = (), grace_s: float = GRACE_S) -> None:
        self.log = log
        self._grace_s = grace_s
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_PROXY": "*", "no_proxy": "*"}  # noqa: TID251 - a process launcher
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*pinned_to(cpus), *launch.argv],
                env={**environment, **launch.env},
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def pids(self) -> list[int]:
        return find_tree(self.pid)

    def cpu_s(self) -> float:
        return sum(map(read_cpu_s, self.pids()))

    def last_words(self) -> str:
        return self.log.read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()

    def end(self) -> None:
        """By SIGTERM, and what is left after some seconds by SIGKILL."""
        others = self.pids()[1:]
        if self.exit_code is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in others:  # those that made themselves a group of their own
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def pinned_to(cpus: Sequence[int]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []


def find_tree(root: int) -> list[int]:
    """`root` and all that descend from it."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _read_stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree.extend(children[pid])
    return tree


def read_cpu_s(pid: int) -> float:
    """User and system time of all its threads, ended ones too; 0 if it is gone."""
    try:
        return time.clock_gettime(_cpu_clock_of(pid))
    except OSError:
        return 0.0


def _cpu_clock_of(pid: int) -> int:
    """What clock_getcpuclockid(3) gives on Linux: the scheduler's nanoseconds, not ticks of 10 ms."""
    return ~pid << 3 | 2


def _read_stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: a name may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def wait_until_quiet(child: Child, limit_s: float = 15.0) -> None:
    """Until it has digested what a measurement left in it, so that the next one does not pay for that."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        before = child.cpu_s()
        time.sleep(0.2)
        if child.cpu_s() - before <= 0.02:
            return
