"""How often a gateway was restarted and what became of it, in a few bytes that all its processes can read.

In: the words of the process that starts generations. Out: the same, in any worker and in `crossover restart`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

SIZE = 4096  # bytes: one page, written in one call
MOST_WORDS = 600  # characters of a reason


@dataclass(frozen=True, slots=True)
class Restart:
    """The last restart. `generation`: the one that was started. `why`: the reason if it failed. `at`: Unix seconds."""

    generation: int
    at: float
    why: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """`pid`: takes SIGHUP. `generation`: the one that serves. `begun`, `ended`: how many restarts have so far."""

    pid: int
    generation: int = 1
    begun: int = 0
    ended: int = 0
    last: Restart | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ValueError for what is no standing, and for one that is just being written."""
        try:
            fields: Mapping[str, Any] = json.loads(data)  # Any: JSON, our own
            last = fields["last"]
            return cls(**{**fields, "last": None if last is None else Restart(**last)})
        except (TypeError, KeyError) as exc:
            raise ValueError(str(exc)) from exc

    def encode(self) -> bytes:
        last = self.last and replace(self.last, why=self.last.why and self.last.why[:MOST_WORDS])
        return json.dumps(asdict(replace(self, last=last)), ensure_ascii=False).encode().ljust(SIZE)


class Board:
    """A standing in a file without a name, which other processes open by its descriptor. Linux only."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> Self:
        board = cls(os.memfd_create("crossover-standing"))
        board.write(Standing(os.getpid()))
        return board

    def write(self, standing: Standing) -> None:
        os.pwrite(self.fd, standing.encode(), 0)

    def read(self) -> Standing:
        while True:
            try:
                return Standing.decode(os.pread(self.fd, SIZE, 0))
            except ValueError:  # half of it has been written
                continue
