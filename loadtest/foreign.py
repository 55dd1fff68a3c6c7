"""Other people's requests on a backend while a cell is measured there, by the gateway's own counts.

In: a target, and the measuring itself. Out: what it returned, and the share of those in flight that were not ours.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from loadtest.beside import Measured, beside
from loadtest.cell import Recording
from loadtest.connection import clock
from loadtest.subject import Counts, Subject, count_by_backend
from loadtest.target import Target

POLL_S = 0.25  # ten looks at the shortest usual window
ROOM_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """What one backend held at a moment of the client's clock."""

    at: float
    counts: Counts


@dataclass(slots=True)
class Watch:
    """Looks at one backend for as long as something is measured on it, once."""

    target: Target
    subject: Subject
    backend: str
    _looks: list[Look] = field(default_factory=list)

    async def over(self, measuring: Awaitable[Measured]) -> Measured:
        """What `measuring` returns. Raises what it raises, and Unreachable if the gateway stops telling its counts."""
        return await beside(measuring, self._look())

    def find_share(self, recording: Recording) -> float | None:
        return find_share(self._looks, recording)

    async def _look(self) -> None:
        while True:
            counts = await count_by_backend(self.target, self.subject)
            self._looks.append(Look(clock(), counts[self.backend]))
            await asyncio.sleep(POLL_S)


def find_share(looks: Sequence[Look], recording: Recording) -> float | None:
    """Of all requests seen in the window. None if nobody looked then, or the gateway does not tell users' apart."""
    inside = [look.counts for look in looks if recording.opened_at <= look.at <= recording.closed_at]
    foreign = [counts.foreign for counts in inside if counts.foreign is not None]
    total = sum(counts.in_flight for counts in inside)
    return sum(foreign) / total if total and len(foreign) == len(inside) else None


async def wait_for_room(target: Target, subject: Subject, most: int, tell: Callable[[str], None]) -> None:
    """Until no more than `most` requests of others are in flight on both backends; `tell` hears why it takes time."""
    is_waiting = False
    while (foreign := await _count_foreign(target, subject)) > most:
        if not is_waiting:
            tell(f"waiting: {foreign} requests of others are in flight, and measurements begin at {most} or fewer")
        is_waiting = True
        await asyncio.sleep(ROOM_POLL_S)


async def _count_foreign(target: Target, subject: Subject) -> int:
    return sum(counts.foreign or 0 for counts in (await count_by_backend(target, subject)).values())
