"""A generation of workers that ends while its successor serves: what it still has in flight, by model and backend.

In: the descriptor of its map, and where in it the counts are, as plain data: the successor's code may lay another plan.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from gateway.shared.memory import Memory
from gateway.shared.plan import WORD, Span


class Counts(NamedTuple):
    """Where a backend's counts begin in a map: as many words from either offset as there are workers."""

    in_flight: int
    steering: int
    workers: int


Places: TypeAlias = Mapping[str, Mapping[str, Counts]]  # by model and backend


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Its map, read only by us."""

    memory: Memory
    places: Places

    @classmethod
    def open(cls, fd: int, places: Mapping[str, Mapping[str, tuple[int, int, int]]]) -> Self:
        memory = Memory.attach(fd, os.fstat(fd).st_size)
        os.close(fd)  # or the map would stay for as long as its successor serves
        return cls(memory, {model: {name: Counts(*each) for name, each in of.items()} for model, of in places.items()})

    def count(self, model: str, backend: str) -> tuple[int, int]:
        """Returns what it has in flight at a backend, and how much of that steers."""
        if (counts := self.places.get(model, {}).get(backend)) is None:
            return 0, 0
        in_flight, steering = (Span(offset, counts.workers * WORD) for offset in counts[:2])
        return sum(self.memory.ints(in_flight)), sum(self.memory.ints(steering))
