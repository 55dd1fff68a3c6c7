"""One calibration's folder, as every worker of the node reads it: its order, and the lines of its process.

In: a path. Out: an order, events, whether the process lives. Starts and ends nothing.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import orjson

Event: TypeAlias = Mapping[str, object]

ORDER, PROGRESS, OUTPUT, LOCK, CANCELLED = "order.json", "progress.jsonl", "output.txt", "lock", "cancelled"
END = "end"


@dataclass(frozen=True, slots=True)
class Job:
    """A calibration; its folder's name is its id. It is complete once its order is written, which comes last."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def is_ordered(self) -> bool:
        return (self.path / ORDER).exists()

    @property
    def is_cancelled(self) -> bool:
        return (self.path / CANCELLED).exists()

    def write_order(self, order: Mapping[str, object]) -> None:
        """Writes the order whole or not at all: other workers may be reading."""
        unfinished = self.path / f"{ORDER}.new"
        unfinished.write_bytes(orjson.dumps(order))
        unfinished.rename(self.path / ORDER)

    def read_order(self) -> dict[str, object]:
        order: dict[str, object] = orjson.loads((self.path / ORDER).read_bytes())
        return order

    def is_running(self) -> bool:
        """Returns whether the process lives: until its end it holds a lock, which the kernel frees, however it ends."""
        with open_locked(self.path / LOCK, fcntl.LOCK_SH) as fd:  # shared: two that ask at once do not collide
            return fd is None

    def cancel_once(self) -> bool:
        """Returns whether this call is the first: a second signal would interrupt the writing that the first begins."""
        try:
            os.close(os.open(self.path / CANCELLED, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def read_events(self) -> list[Event]:
        """Returns all events so far. If the process has ended without an `end` event, one is added.

        A process writes that event a moment before it is gone with its locks. The event is left out until then, because
        its reader may want to start the next calibration.
        """
        is_over = not self.is_running()  # asked first: what was written by then is read below
        events = list(parse_lines((self.path / PROGRESS).read_bytes().splitlines(keepends=True)))
        has_end = bool(events) and events[-1].get("event") == END
        if is_over and not has_end:
            return [*events, self._make_end()]
        return events[:-1] if has_end and not is_over else events

    def _make_end(self) -> Event:
        if self.is_cancelled:
            return {"event": END, "status": "interrupted", "failure": None}
        words = (self.path / PROGRESS).read_bytes().decode(errors="replace").split("\n")
        last = next((line for line in reversed(words) if line.strip() and not line.startswith("{")), "")
        return {"event": END, "status": "failed", "failure": last or "its process ended without a word"}


def parse_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yields each event; skips a line that is not a whole JSON object, such as half a line or a crash's traceback."""
    for line in lines:
        if line.startswith(b"{") and line.endswith(b"}\n"):
            yield orjson.loads(line)


@contextmanager
def open_locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[int | None]:
    """Yields a descriptor that holds the lock for the block and for a process that inherits it; None if it is taken."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None
    else:
        yield fd
    finally:
        os.close(fd)
