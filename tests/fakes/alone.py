"""What a node's only worker has of routing, for tests that need no whole node."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from gateway.core import Backend, State
from gateway.routing import DryRun, Fleet, LearnedFile, Ledger, PolicyFile, Router, Shared, first_policy
from gateway.settings import ModelSettings, ProbeSettings
from gateway.shared import Roster, Seat


def make_roster() -> Roster:
    roster = Roster(Seat.alone())
    roster.enter()
    return roster


def make_ledger(backends: Collection[str], state: State, text: bytes = b"") -> Ledger:
    ledger = Ledger(backends, Seat.alone())
    ledger.adopt(state, text)
    return ledger


def make_fleet(
    settings: ModelSettings,
    backends: Mapping[str, Backend],
    probe: ProbeSettings,
    clock: Callable[[], float] = time.monotonic,
) -> Fleet:
    first = first_policy(settings, PolicyFile(None, [settings]), LearnedFile(None), clock)
    dry = None
    if settings.dry is not None:
        dry = DryRun(settings.dry, settings.backends, Seat.alone())
        dry.begin(clock())
    return Fleet(settings, backends, probe, Shared(make_ledger(settings.backends, *first), dry), clock)


def make_router(fleets: Iterable[Fleet]) -> Router:
    return Router(fleets, make_roster(), PolicyFile(None, ()), LearnedFile(None))
