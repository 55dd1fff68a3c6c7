"""Reads every engine of the configuration at an interval, for as long as the gateway runs.

In: settings, kinds of engines, a view of routing. Out: the latest evidence in shared memory, and warnings in the log.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.background import running
from gateway.evidence.engine import ReadableKind, open_engines
from gateway.evidence.fingerprint import Fingerprint
from gateway.evidence.latest import LatestEvidence
from gateway.evidence.stale_warning import StaleWarning
from gateway.evidence.values import Evidence, Identity, Place
from gateway.evidence.watch import Ledger, Watch
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class RoutingView:
    """The part of routing that this room reads.

    `count`: leases held now at a place, on the whole node. `fingerprint`: that of the engines that a model's policy was
    measured on; None for a policy set by hand. `identify`: receives, at each
    reading, the identity of the engine at a place.
    """

    count: Ledger
    fingerprint: Callable[[str], Fingerprint | None]
    identify: Callable[[Place, Identity], None]


@asynccontextmanager
async def gathering(
    settings: Settings, kinds: Mapping[str, ReadableKind], latest: LatestEvidence, routing: RoutingView
) -> AsyncIterator[None]:
    """Reads engines while inside; the block begins before the first reading. One process of the node does this."""
    warning = StaleWarning()

    def publish(place: Place, evidence: Evidence) -> None:
        latest.publish(place, evidence)
        routing.identify(place, evidence.identity)
        # At every reading, not only when it differs from the last: the policy may have changed too.
        warning.feed(place.model, latest.find_changes(place.model, routing.fingerprint(place.model)))

    async with open_engines(settings.models, kinds) as engines:
        watches = [Watch(engine, routing.count, settings.evidence, publish) for engine in engines]
        async with running(*(watch.run() for watch in watches)):
            yield
