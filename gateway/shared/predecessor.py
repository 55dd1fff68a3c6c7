"""A generation of workers that ends while its successor serves: what it still has in flight, by model and backend.

In: the descriptor of its map, and where in it the counts are, as plain data: the successor's code may lay another plan.
"""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from gateway.shared.memory import WORD, Ints


class Counts(NamedTuple):
    """Where a backend's counts begin in a map: as many words from either offset as there are workers."""

    in_flight: int
    steering: int
    workers: int


Places: TypeAlias = Mapping[str, Mapping[str, Counts]]  # by model and backend


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Its map, read only by us."""

    view: Ints
    places: Places

    @classmethod
    def open(cls, fd: int, places: Mapping[str, Mapping[str, tuple[int, int, int]]]) -> Self:
        view = memoryview(mmap.mmap(fd, 0))
        os.close(fd)  # or the map would stay for as long as its successor serves
        return cls(view, {model: {name: Counts(*each) for name, each in of.items()} for model, of in places.items()})

    def count(self, model: str, backend: str) -> tuple[int, int]:
        """Returns what it has in flight at a backend, and how much of that steers."""
        if (counts := self.places.get(model, {}).get(backend)) is None:
            return 0, 0
        in_flight, steering = (self.view[at : at + counts.workers * WORD].cast("q") for at in counts[:2])
        return sum(in_flight), sum(steering)
