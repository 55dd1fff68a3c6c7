"""Starts processes, watches them together, and ends them all when its block is left.

In: Processes. Out: when they are ready; LaunchError with a message for the user when one dies or is not ready in time.
Single-threaded and synchronous: signals arrive as exceptions in the one thread there is.
"""

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from deploy.processes import Child, Process, describe_status

POLL_S = 0.1
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # none of them may interrupt the ending itself


class LaunchError(Exception):
    """A stack cannot run; the message is for the user."""


class ChildDied(LaunchError):
    def __init__(self, child: Child, status: int) -> None:
        super().__init__(f"{child.process.name} ended unexpectedly ({describe_status(status)}){_last_words(child)}")


class NotReady(LaunchError):
    def __init__(self, child: Child, timeout_s: float) -> None:
        super().__init__(f"{child.process.name} was not ready after {timeout_s:.0f} s{_last_words(child)}")


def _last_words(child: Child) -> str:
    return f"; the last lines of {child.log}:\n{child.tail()}" if child.log else ""


class Supervisor(AbstractContextManager["Supervisor"]):
    """Children by name, logs in one folder. Leaving the block, for any reason, ends every child and its descendants."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.children: list[Child] = []

    def __repr__(self) -> str:
        return f"<Supervisor {self.children}>"

    def __enter__(self) -> "Supervisor":
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in ENDINGS]
        try:
            self.stop()
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)

    def start(self, process: Process) -> Child:
        child = Child(process, self._logs / f"{process.name}.log")
        self.children.append(child)
        return child

    def stop(self) -> None:
        """End every child, all at the same time; bounded by the leash's grace."""
        for child in self.children:
            child.let_go()
        for child in self.children:
            child.wait()
        self.children.clear()

    def check(self) -> None:
        """Raises ChildDied if a child has ended."""
        for child in self.children:
            if (status := child.status) is not None:
                raise ChildDied(child, status)

    def wait_until_ready(self, timeout_s: float, report: Callable[[str, float], None]) -> None:
        """Returns when every child is ready; `report` receives each one's name and seconds. Raises LaunchError."""
        started = time.monotonic()
        waiting = list(self.children)
        while waiting:
            self.check()
            elapsed_s = time.monotonic() - started
            for child in [child for child in waiting if child.process.is_ready()]:
                waiting.remove(child)
                report(child.process.name, elapsed_s)
            if waiting and elapsed_s > timeout_s:
                raise NotReady(waiting[0], timeout_s)
            time.sleep(POLL_S if waiting else 0)

    def run(self, process: Process) -> int:
        """Runs a process to its end on our own terminal while watching the others; returns its exit status."""
        child = Child(process, log=None)
        try:
            while child.status is None:
                self.check()
                time.sleep(POLL_S)
            return child.status
        finally:
            child.let_go()
            child.wait()

    def watch(self) -> None:
        """Waits for as long as every child lives. Raises ChildDied when one ends."""
        while True:
            self.check()
            time.sleep(POLL_S)
