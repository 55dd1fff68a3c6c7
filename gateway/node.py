"""The memory that the workers of one gateway share: live workers, ledgers, the tally, engines' evidence, a salt.

In: Settings, from which every process computes the same layout. Out: the shared objects, for the rooms that use them.
"""

import logging
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from gateway.evidence import EvidenceSpans, LatestEvidence, Place
from gateway.metrics import Tally, TallySpans
from gateway.restarts import Board
from gateway.routing import DryRun, DrySpans, LearnedFile, Ledger, LedgerSpans, PolicyFile, first_policy
from gateway.settings import Settings
from gateway.shared import Counts, Places, Plan, Predecessor, Roster, Seat, Span

logger = logging.getLogger(__name__)

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
        self._spans = spans
        self._models = settings.models
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
    def create(cls, settings: Settings, board: Board | None = None) -> Self:
        """Returns the supervisor's node before any worker starts: a new map, with the first policies in force."""
        spans = NodeSpans.lay(settings)
        node = cls(settings, spans, replace(Seat.found(spans.size, settings.workers), board=board))
        node._begin(settings)
        return node

    @classmethod
    def join(cls, settings: Settings, index: int, fd: int, board: Board | None = None) -> Self:
        """Returns the view of worker `index` of a node that was created from the same settings; `fd` opens its map."""
        spans = NodeSpans.lay(settings)
        seat = replace(Seat.take(spans.size, settings.workers, index, fd), board=board)
        node = cls(settings, spans, seat)
        node.roster.enter()
        return node

    def clear(self, index: int) -> None:
        """Releases the leases of a dead worker; its share of the tally stays."""
        self.roster.clear(index)
        for ledger in self.ledgers.values():
            ledger.clear(index)

    def places(self) -> Places:
        """Returns where this node counts what is in flight, for the generation after it."""
        return {
            model.id: {
                name: Counts(in_flight.offset, steering.offset, self.seat.workers)
                for name, in_flight, steering in zip(model.backends, spans.in_flight, spans.steering, strict=True)
            }
            for model in self._models
            for spans in (self._spans.ledgers[model.id],)
        }

    def inherit(self, predecessors: Collection[Predecessor]) -> None:
        """Counts what generations before this one have in flight now."""
        for model in self._models:
            for name in model.backends:
                counts = [predecessor.count(model.id, name) for predecessor in predecessors]
                in_flight, steering = map(sum, zip((0, 0), *counts, strict=True))
                self.ledgers[model.id].inherit(name, in_flight, steering)

    def drained(self) -> Mapping[str, Collection[str]]:
        """Returns by model the backends that an operator wants empty."""
        return {model: sorted(ledger.glance()[1]) for model, ledger in self.ledgers.items()}

    def drain(self, drained: Mapping[str, Collection[str]]) -> None:
        """Drains these backends, as far as there are such, and no others."""
        for model in self._models:
            ledger, wanted = self.ledgers[model.id], drained.get(model.id, ())
            for name in model.backends:
                if (name in wanted) != (name in ledger.glance()[1]):
                    ledger.drain(name, name in wanted)

    def renew_policies(self) -> None:
        """Puts in force what was set over HTTP since this node began, by the generation before."""
        for model in self._models:
            if (kept := self.policies.find_version(model.id)) > self.ledgers[model.id].glance()[0].version:
                logger.info("policy of %s was set meanwhile: version %d", model.id, kept)
                self.ledgers[model.id].adopt(*first_policy(model, self.policies, self.learned))

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
