"""Reads an engine at an interval, compares it with the ledger, publishes that, and warns of a drift that lasts.

In: an engine, the ledger's counts, and where evidence goes. Out: Evidence per place, and log lines. One process of the
node runs it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from gateway.evidence.drift import SteadyDrift, find_drift
from gateway.evidence.engine import Engine
from gateway.evidence.http import NoAnswer
from gateway.evidence.values import UNKNOWN, Evidence, Identity, Place, shorten
from gateway.settings import EvidenceSettings

logger = logging.getLogger(__name__)

# Leases begin a little before and end a little after an engine's own count. At a steady rate of short requests that
# difference lasts; it is a few percent, so that only a drift beyond this part of the ledger's count is logged.
TOLERANCE = 0.05

Ledger: TypeAlias = Callable[[Place], int]  # how many leases of a place are held now, on the whole node
Publish: TypeAlias = Callable[[Place, Evidence], None]


class Watch:
    """Reads one engine for ever."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        settings: EvidenceSettings,
        publish: Publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._settings = settings
        self._publish = publish
        self._clock = clock
        self._steady = SteadyDrift(settings.drift_for_s)
        self._evidence = UNKNOWN
        self._is_adrift = False

    def __repr__(self) -> str:
        return f"<Watch {self._engine} {self._evidence}>"

    async def run(self) -> None:
        while True:
            await self._look_safely()
            await asyncio.sleep(self._settings.interval_s)

    async def look(self) -> Evidence:
        """Reads the engine once, publishes what is known then, and returns it."""
        page, in_flight, drift = await self._count()
        now = self._clock()
        steady = self._steady.feed(drift, now)
        size = self._evidence.size if page is None else self._engine.reader.read_size(page)
        self._evidence = Evidence(await self._identify(page), in_flight, drift, steady, now, size)
        for place in self._engine.places:
            self._publish(place, self._evidence)
        self._report(steady)
        return self._evidence

    async def _look_safely(self) -> None:
        try:
            await self.look()
        # Edge of a background loop: a fault in reading one engine must end neither the others' nor the gateway.
        except Exception:
            logger.exception("reading %s raised", self._engine)

    async def _count(self) -> tuple[bytes | None, int | None, int | None]:
        """Returns the metrics page, the engine's count on it, and the drift."""
        before = self._sent()
        try:
            page = await self._engine.reader.read_metrics()
        except NoAnswer as exc:
            logger.debug("%s reports no count: %s", self._engine, exc)
            return None, None, None
        after = self._sent()
        in_flight = None if page is None else self._engine.reader.count(page)
        return page, in_flight, None if in_flight is None else find_drift(in_flight, before, after)

    async def _identify(self, page: bytes | None) -> Identity:
        try:
            return shorten(await self._engine.reader.identify(page))
        except NoAnswer as exc:
            logger.debug("%s does not identify itself: %s", self._engine, exc)
            return self._evidence.identity

    def _sent(self) -> int:
        return sum(self._ledger(place) for place in self._engine.places)

    def _report(self, steady: int | None) -> None:
        """Logs one line when a drift has lasted, one when it is over, none while nothing is known."""
        if steady is None:
            return
        is_adrift = abs(steady) > TOLERANCE * self._sent()
        if is_adrift and not self._is_adrift:
            logger.warning("%s %s", self._engine, _explain(steady, self._settings.drift_for_s))
        elif self._is_adrift and not is_adrift:
            logger.info("%s holds again what it was sent", self._engine)
        self._is_adrift = is_adrift


def _explain(steady: int, for_s: float) -> str:
    count = f"{abs(steady)} {'request' if abs(steady) == 1 else 'requests'}"
    if steady > 0:
        return (
            f"holds {count} more than this gateway has sent it, for {for_s:g} s: "
            "somebody else uses it, or cancelled requests linger"
        )
    return (
        f"holds {count} fewer than this gateway has sent it, for {for_s:g} s: "
        "they wait in front of it, or its figures are late"
    )
