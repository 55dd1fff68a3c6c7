"""One worker's place in what its node shares."""

from dataclasses import dataclass
from typing import Self

from gateway.restarts import Board
from gateway.shared.lock import NodeLock
from gateway.shared.memory import Memory


@dataclass(frozen=True, slots=True)
class Seat:
    """The map, its lock, and the index of the row, among `workers`, that this process writes.

    `board`: shows how the gateway stands; None where nothing restarts it. The supervisor has the first seat too; it
    writes a row only to clear that of a dead worker.
    """

    memory: Memory
    lock: NodeLock
    index: int = 0
    workers: int = 1
    board: Board | None = None

    @classmethod
    def alone(cls, workers: int = 1) -> Self:
        """Returns the seat of the only worker there is; rows for more than one stay empty."""
        return cls(Memory(), NodeLock(None), workers=workers)

    @classmethod
    def found(cls, size: int, workers: int) -> Self:
        """Returns the supervisor's seat, in a new map."""
        memory = Memory.create(size)
        return cls(memory, NodeLock(memory.fd), workers=workers)

    @classmethod
    def take(cls, workers: int, index: int, fd: int) -> Self:
        """Returns the seat of worker `index` in the map that `fd` opens."""
        return cls(Memory.attach(fd), NodeLock(fd), index, workers)
