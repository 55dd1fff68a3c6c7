"""The room at work: every engine of the configuration asked while inside, all that is learnt put on the board.

In: settings, a board, and what routing knows. Out: the board filled, and warnings in the log.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.evidence.board import Board
from gateway.evidence.fingerprint import Fingerprint
from gateway.evidence.readers import open_engines
from gateway.evidence.stale import StaleWarning
from gateway.evidence.values import Evidence, Place
from gateway.evidence.watch import Ledger, Watch, watching
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Routing:
    """What the room wants to know of routing.

    `count`: leases held now at a place, on the whole node. `fingerprint`: of the engines that the policy of a model was
    measured on, None if it was set by hand.
    """

    count: Ledger
    fingerprint: Callable[[str], Fingerprint | None]


@asynccontextmanager
async def gathering(settings: Settings, board: Board, routing: Routing) -> AsyncIterator[None]:
    """Entered at once, when nothing is known yet. For one process of the node."""
    warning = StaleWarning()

    def publish(place: Place, evidence: Evidence) -> None:
        board.publish(place, evidence)
        # At every reading, not only when it differs: the policy may have been changed as well.
        warning.feed(place.model, board.find_changes(place.model, routing.fingerprint(place.model)))

    async with open_engines(settings.models) as engines:
        watches = [Watch(engine, routing.count, settings.evidence, publish) for engine in engines]
        async with watching(watches):
            yield
