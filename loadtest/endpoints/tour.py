"""Several endpoints loaded in turn: each at every level, once a round, beginning with another one each time.

In: endpoints, levels, what a request is. Out: a Visit for each cell, as soon as it is measured.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.batch import Batch
from loadtest.cell import Cell, Recording, summarise
from loadtest.checks import find_flaw
from loadtest.closed_loop import ClosedLoop
from loadtest.crew import Helper
from loadtest.errors import CalibrationError
from loadtest.judge import Judge
from loadtest.plan import Pair, Plan
from loadtest.sender import Sender


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`sender`: as its probe left it, for one may tell usage with every event and another may not."""

    name: str
    sender: Sender
    judge: Judge


@dataclass(frozen=True, slots=True)
class Visit:
    """`batch`: how often each stream asked; None for a steady load."""

    endpoint: str
    level: int
    round: int
    cell: Cell
    batch: int | None = None

    @property
    def flaw(self) -> str | None:
        """Why the window was not steady, if it was not; named after the endpoint, since no backend was."""
        if self.batch is not None:
            return None  # it begins with a burst and ends with a few: nobody said it were steady
        flaw = find_flaw(self.cell)
        return flaw and flaw.replace(f" {self.cell.backend} ", f" {self.endpoint} ", 1)

    def as_row(self) -> dict[str, Any]:  # Any: JSON
        row = {"endpoint": self.endpoint, "level": self.level, "round": self.round, "cell": asdict(self.cell)}
        return row if self.batch is None else row | {"batch": self.batch}


@dataclass(frozen=True, slots=True)
class Stop:
    """One cell to be measured. `number`: its own, from which its prompts follow, so that none comes twice."""

    endpoint: int
    level: int
    round: int
    number: int


def plan_tour(endpoints: int, levels: Sequence[int], rounds: int) -> Iterator[Stop]:
    """Level by level within a round; endpoints in turns that begin with the next one, and backwards every other round.

    What grows steadily over a run then weighs on all of them alike, and none always follows the same one.
    """
    number = 0
    for at in range(rounds):
        for place, level in enumerate(levels):
            first = (at + place) % endpoints
            turn = [*range(first, endpoints), *range(first)]
            for endpoint in turn if at % 2 == 0 else reversed(turn):
                yield Stop(endpoint, level, at, number)
                number += 1


async def travel(
    endpoints: Sequence[Endpoint], stops: Iterator[Stop], plan: Plan, helpers: Sequence[Helper], batch: int | None
) -> AsyncIterator[Visit]:
    """Raises CalibrationError at the first answer that is not the work asked for."""
    for stop in stops:
        endpoint = endpoints[stop.endpoint]
        pair = Pair(stop.level, low_first=True, number=stop.number)
        with naming(endpoint.name):
            recording = await _load(endpoint, pair, plan, helpers, batch)
        yield Visit(endpoint.name, stop.level, stop.round, summarise(recording, plan.tokens), batch)


@contextmanager
def naming(endpoint: str) -> Iterator[None]:
    """What goes wrong within says of which endpoint it is."""
    try:
        yield
    except CalibrationError as exc:
        raise type(exc)(f"{endpoint}: {exc}") from exc


async def _load(endpoint: Endpoint, pair: Pair, plan: Plan, helpers: Sequence[Helper], batch: int | None) -> Recording:
    if batch is not None:
        return await Batch(endpoint.sender, endpoint.judge, plan, pair, batch, helpers).run()
    return await ClosedLoop(endpoint.sender, endpoint.judge, plan, pair, "", helpers=helpers).run()
