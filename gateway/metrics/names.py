"""Outcomes and error codes as small numbers that all workers share, given out as they first occur.

Only how many there may be is bounded here; the rooms that raise errors know the codes.
"""

from gateway.shared import Seat

CAPACITY = 64
NAME_BYTES = 48
OTHER = 0  # the number of every name that comes when all others are taken
OTHER_NAME = "other"


class Names:
    """The names and their numbers. `number` costs one look into a dict, except for a name new to the worker."""

    def __init__(self, seat: Seat) -> None:
        self._lock = seat.lock
        self._count = seat.memory.ints(1)
        self._names = seat.memory.raw(CAPACITY * NAME_BYTES)
        self._known: dict[str, int] = {}

    def number(self, name: str) -> int:
        found = self._known.get(name)
        return self._learn(name) if found is None else found

    def read(self) -> list[str]:
        """Returns all names so far, in the order of their numbers."""
        places = (self._names[index * NAME_BYTES : (index + 1) * NAME_BYTES] for index in range(1, 1 + self._count[0]))
        return [OTHER_NAME, *(bytes(place).rstrip(b"\0").decode() for place in places)]

    def _learn(self, name: str) -> int:
        with self._lock:
            names = self.read()
            number = names.index(name) if name in names else self._add(name.encode(), len(names))
        self._known[name] = number
        return number

    def _add(self, name: bytes, number: int) -> int:
        if number >= CAPACITY or len(name) > NAME_BYTES:
            return OTHER
        self._names[number * NAME_BYTES : number * NAME_BYTES + len(name)] = name
        self._count[0] = number  # only from here on do others read it
        return number
