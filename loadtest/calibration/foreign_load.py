"""Other clients' requests on a backend while a cell is measured there, by the gateway's own counts.

In: a target. Out: the share of other clients' requests in a recording's window.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.calibration.gateway import InFlight, count_in_flight
from loadtest.client.connection import clock
from loadtest.client.recording import Recording
from loadtest.client.target import Target
from loadtest.results.system import SystemUnderTest

POLL_S = 0.25  # ten samples in the shortest usual window
WAIT_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """`at`: by the client's clock."""

    at: float
    in_flight: InFlight


@dataclass(slots=True)
class ForeignLoad:
    """Of one backend, while one cell is measured on it."""

    target: Target
    system: SystemUnderTest
    backend: str
    _samples: list[Sample] = field(default_factory=list)

    def find_share(self, recording: Recording) -> float | None:
        return find_share(self._samples, recording)

    async def sample(self) -> None:
        """Until it is cancelled. Raises Unreachable if the gateway stops reporting its counts."""
        while True:
            in_flight = await count_in_flight(self.target, self.system)
            self._samples.append(Sample(clock(), in_flight[self.backend]))
            await asyncio.sleep(POLL_S)


def find_share(samples: Sequence[Sample], recording: Recording) -> float | None:
    """Of all requests seen in the window. None without a sample there, or if the gateway does not report others'."""
    inside = [sample.in_flight for sample in samples if recording.holds(sample.at)]
    foreign = [counts.foreign for counts in inside if counts.foreign is not None]
    total = sum(counts.all for counts in inside)
    return sum(foreign) / total if total and len(foreign) == len(inside) else None


async def wait_for_others(
    target: Target, system: SystemUnderTest, max_foreign: int, note: Callable[[str], None]
) -> None:
    """Until at most `max_foreign` requests of other clients are in flight on both backends; `note` gets the reason."""
    is_waiting = False
    while (foreign := await _count_foreign(target, system)) > max_foreign:
        if not is_waiting:
            others = f"waiting: {foreign} requests of others are in flight"
            note(f"{others}, and measurements begin at {max_foreign} or fewer")
        is_waiting = True
        await asyncio.sleep(WAIT_POLL_S)


async def _count_foreign(target: Target, system: SystemUnderTest) -> int:
    return sum(counts.foreign or 0 for counts in (await count_in_flight(target, system)).values())
