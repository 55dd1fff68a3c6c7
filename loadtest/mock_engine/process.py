"""Child processes on chosen CPUs: started, measured through /proc, ended together with all that they started.

In: a command. Out: a Child. Knows no gateway.
"""

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

GRACE_S = 6.0
LOG_BYTES = 1500
POLL_S = 0.1


class CannotMeasure(Exception):
    """A program cannot be built, started or used. The message names what is missing, for whoever gave the command."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line. `env` is added to the environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class Child:
    """A process group of its own, pinned to `cpus` if there are any. A context manager: leaving it ends the group."""

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

    def read_log(self) -> str:
        """Reads the end of its output."""
        return self.log.read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()

    def end(self) -> None:
        """Ends the process by SIGTERM and, after at most `grace_s` seconds, what is still running by SIGKILL."""
        others = self.pids()[1:]
        if self.exit_code is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in others:  # those that left the process group
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def pinned_to(cpus: Sequence[int]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []


def find_tree(root: int) -> list[int]:
    """Returns `root` and all its descendants."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _read_stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree.extend(children[pid])
    return tree


def read_cpu_s(pid: int) -> float:
    """Returns user and system time of all its threads, those that have ended too; 0 if the process has ended."""
    # The clock of clock_getcpuclockid(3) on Linux: it has the scheduler's nanoseconds, /proc only ticks of 10 ms.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def _read_stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the name, which may contain blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def wait_until_ready(name: str, child: Child, probe: Callable[[], object], timeout_s: float) -> None:
    """Calls `probe` until it raises no OSError. Raises CannotMeasure if the process ends or the time is up before."""
    give_up_at = time.monotonic() + timeout_s
    complaint = "nothing"
    while time.monotonic() < give_up_at:
        if child.exit_code is not None:
            raise CannotMeasure(f"{name} ended with exit code {child.exit_code}: {child.read_log()}")
        try:
            probe()
        except OSError as exc:
            complaint = str(exc)
            time.sleep(POLL_S)
        else:
            return
    raise CannotMeasure(f"{name} does not answer ({complaint}): {child.read_log()}")


def wait_until_quiet(child: Child, limit_s: float = 15.0) -> None:
    """Waits until it uses next to no CPU: work left over from one measurement would be counted in the next."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        before = child.cpu_s()
        time.sleep(0.2)
        if child.cpu_s() - before <= 0.02:
            return
