"""One process: what to start, and the child that it became, on a leash, with its log.

Knows nothing of stacks or of other processes.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")
TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Process:
    """A process to start. `is_ready` is called again and again: it returns at once and never raises."""

    name: str
    command: tuple[str, ...]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A started process. It ends, with all its descendants, on `let_go` or when this process ends."""

    def __init__(self, process: Process, log: Path | None) -> None:
        """Starts the process. `log` receives its output; None: the output goes where this process's goes."""
        self.process = process
        self.log = log
        if log is None:
            self._popen = self._start(None)
        else:
            with log.open("wb") as output:
                self._popen = self._start(output)

    def __repr__(self) -> str:
        return f"<Child {self.process.name} status={self.status}>"

    @property
    def status(self) -> int | None:
        """The exit status, 128 + n if signal n ended it; None while it runs."""
        status = self._popen.poll()
        return 128 - status if status is not None and status < 0 else status

    def let_go(self) -> None:
        """Make it end, within the leash's grace; returns at once. Idempotent."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def wait(self) -> None:
        self._popen.wait()

    def tail(self, lines: int = 20) -> str:
        """Returns the last lines of the log."""
        if self.log is None:
            return ""
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            text = output.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _start(self, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(LEASH), *self.process.command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            # Ctrl-C in a terminal goes to the foreground group: only the owner gets it, and ends everyone in order.
            start_new_session=True,
            env={**os.environ, **self.process.environment},  # noqa: TID251 - a process launcher
        )


def describe_status(status: int) -> str:
    """Returns an exit status in words."""
    if status <= 128:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"exit status {status}"
