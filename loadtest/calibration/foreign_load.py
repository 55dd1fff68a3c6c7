"""Other clients' requests on a backend while a cell is measured there, by the gateway's own counts.

In: a function that asks the gateway. Out: the share of other clients' requests in a recording's window.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from loadtest.client.connection import clock
from loadtest.client.recording import Recording
from loadtest.results.system import InFlight

POLL_S = 0.25  # ten samples in the shortest usual window
WAIT_POLL_S = 0.5
Count: TypeAlias = Callable[[], Awaitable[Mapping[str, InFlight]]]  # by backend


@dataclass(slots=True)
class ForeignLoad:
    """Counts of one backend's requests while a cell is measured. `samples`: counts with times by the client's clock."""

    count: Count
    backend: str
    samples: list[tuple[float, InFlight]] = field(default_factory=list)

    async def sample(self) -> None:
        """Takes samples until it is cancelled. Raises Unreachable if the gateway stops reporting its counts."""
        while True:
            in_flight = await self.count()
            self.samples.append((clock(), in_flight[self.backend]))
            await asyncio.sleep(POLL_S)

    def find_share(self, recording: Recording) -> float | None:
        """Returns others' share of requests seen in the window; None if none were seen or others' are not reported."""
        inside = [counts for at, counts in self.samples if recording.holds(at)]
        foreign = [counts.foreign for counts in inside if counts.foreign is not None]
        total = sum(counts.all for counts in inside)
        return sum(foreign) / total if total and len(foreign) == len(inside) else None


async def wait_for_others(count: Count, max_foreign: int, note: Callable[[str], None]) -> None:
    """Waits until at most `max_foreign` requests of others are in flight on both backends; `note` gets the reason."""
    is_waiting = False
    while (foreign := sum(counts.foreign or 0 for counts in (await count()).values())) > max_foreign:
        if not is_waiting:
            others = f"waiting: {foreign} requests of others are in flight"
            note(f"{others}, and measurements begin at {max_foreign} or fewer")
        is_waiting = True
        await asyncio.sleep(WAIT_POLL_S)
