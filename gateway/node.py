"""The memory that the workers of one gateway share: live workers, ledgers, the tally, engines' evidence, a salt.

In: Settings, from which every process computes the same layout. Out: the shared objects, for the rooms that use them.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gateway.evidence import EvidenceSpans, LatestEvidence, Place
from gateway.metrics import Tally, TallySpans
from gateway.routing import DryRun, DrySpans, LearnedFile, Ledger, LedgerSpans, PolicyFile, first_policy
from gateway.settings import Settings
from gateway.shared import Plan, Roster, Seat, Span

SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class NodeSpans:
    """The layout of the shared memory, a map of `size` bytes."""

    size: int
    roster: Span
    ledgers: Mapping[str, LedgerSpans]
    dry: Mapping[str, DrySpans]
    tally: TallySpans
    evidence: EvidenceSpans
    salt: Span

    @classmethod
    def lay(cls, settings: Settings) -> Self:
        plan = Plan()
        roster = Roster.plan(plan, settings.workers)
        ledgers = {model.id: LedgerSpans.lay(plan, model.backends, settings.workers) for model in settings.models}
        dry = {model.id: DrySpans.lay(plan, model.backends, settings.workers) for model in settings.models if model.dry}
        tally = TallySpans.lay(plan, _backends(settings), settings.workers)
        evidence = EvidenceSpans.lay(plan, _places(settings))
        salt = plan.raw(SALT_BYTES)
        return cls(plan.size, roster, ledgers, dry, tally, evidence, salt)


class Node:
    """One process's view of the shared memory. `fd`: opens the map in other processes, None if there are none."""

    def __init__(self, settings: Settings, spans: NodeSpans, seat: Seat) -> None:
        self.seat = seat
        self.fd = seat.memory.fd
        self.roster = Roster(spans.roster, seat)
        self.policies = PolicyFile(settings.state_folder, settings.models)
        self.learned = LearnedFile(settings.state_folder)
        self.ledgers = {model.id: Ledger(model.backends, spans.ledgers[model.id], seat) for model in settings.models}
        self.dry = {
            model.id: DryRun(model.dry, model.backends, spans.dry[model.id], seat)
            for model in settings.models
            if model.dry
        }
        self.tally = Tally(_backends(settings), spans.tally, seat)
        self.evidence = LatestEvidence(_places(settings), spans.evidence, seat)
        self._salt = seat.memory.raw(spans.salt)

    @property
    def salt(self) -> bytes:
        """Random bytes, the same for all workers and others after each start of the node. Nothing keeps them."""
        return self._salt.tobytes()

    @classmethod
    def alone(cls, settings: Settings) -> Self:
        """Returns the node of a process that is its only worker, whatever number of workers the settings have."""
        # The layout has a row for each worker of the settings; the others stay empty.
        spans = NodeSpans.lay(settings)
        node = cls(settings, spans, Seat.alone(spans.size, settings.workers))
        node._begin(settings)
        node.roster.enter()
        return node

    @classmethod
    def create(cls, settings: Settings) -> Self:
        """Returns the supervisor's node before any worker starts: a new map, with the first policies in force."""
        spans = NodeSpans.lay(settings)
        node = cls(settings, spans, Seat.found(spans.size, settings.workers))
        node._begin(settings)
        return node

    @classmethod
    def join(cls, settings: Settings, index: int, fd: int) -> Self:
        """Returns the view of worker `index` of a node that was created from the same settings; `fd` opens its map."""
        spans = NodeSpans.lay(settings)
        node = cls(settings, spans, Seat.take(spans.size, settings.workers, index, fd))
        node.roster.enter()
        return node

    def clear(self, index: int) -> None:
        """Releases the leases of a dead worker; its share of the tally stays."""
        self.roster.clear(index)
        for ledger in self.ledgers.values():
            ledger.clear(index)

    def _begin(self, settings: Settings) -> None:
        self._salt[:] = secrets.token_bytes(SALT_BYTES)
        for model in settings.models:
            self.ledgers[model.id].begin(*first_policy(model, self.policies, self.learned))
        for dry in self.dry.values():
            dry.begin(time.monotonic())


def _places(settings: Settings) -> tuple[Place, ...]:
    return tuple(Place(model.id, name) for model in settings.models for name in model.backends)


def _backends(settings: Settings) -> Mapping[str, tuple[str, ...]]:
    return {model.id: tuple(model.backends) for model in settings.models}
