"""The memory that the workers of one gateway share: live workers, ledgers, the tally, engines' evidence, a salt.

In: Settings, from which every process computes the same layout. Out: the shared objects, for the rooms that use them.
"""

import logging
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Self

from gateway.evidence import LatestEvidence, Place
from gateway.metrics import Tally
from gateway.restarts import Board
from gateway.routing import DryRun, LearnedFile, Ledger, PolicyFile, first_policy
from gateway.settings import Settings
from gateway.shared import Places, Predecessor, Roster, Seat

logger = logging.getLogger(__name__)

SALT_BYTES = 16


class Node:
    """One process's view of the shared memory. `fd`: opens the map in other processes, None if there are none."""

    def __init__(self, settings: Settings, seat: Seat) -> None:
        self._models = settings.models
        self.seat = seat
        self.fd = seat.memory.fd
        self.roster = Roster(seat)
        self.policies = PolicyFile(settings.state_folder, settings.models)
        self.learned = LearnedFile(settings.state_folder)
        self.ledgers = {model.id: Ledger(model.backends, seat) for model in settings.models}
        self.dry = {model.id: DryRun(model.dry, model.backends, seat) for model in settings.models if model.dry}
        self.tally = Tally({model.id: tuple(model.backends) for model in settings.models}, seat)
        places = [Place(model.id, name) for model in settings.models for name in model.backends]
        self.evidence = LatestEvidence(places, seat)
        self._salt = seat.memory.raw(SALT_BYTES)

    @property
    def salt(self) -> bytes:
        """Random bytes, the same for all workers and others after each start of the node. Nothing keeps them."""
        return self._salt.tobytes()

    @classmethod
    def alone(cls, settings: Settings) -> Self:
        """Returns the node of a process that is its only worker, whatever number of workers the settings have."""
        node = cls(settings, Seat.alone(settings.workers))
        node._begin(settings)
        node.roster.enter()
        return node

    @classmethod
    def create(cls, settings: Settings, board: Board | None = None) -> Self:
        """Returns the supervisor's node before any worker starts: a new map, with the first policies in force."""
        size = cls(settings, Seat.alone(settings.workers)).seat.memory.size  # what the same objects take without a map
        node = cls(settings, replace(Seat.found(size, settings.workers), board=board))
        node._begin(settings)
        return node

    @classmethod
    def join(cls, settings: Settings, index: int, fd: int, board: Board | None = None) -> Self:
        """Returns the view of worker `index` of a node that was created from the same settings; `fd` opens its map."""
        node = cls(settings, replace(Seat.take(settings.workers, index, fd), board=board))
        node.roster.enter()
        return node

    def clear(self, index: int) -> None:
        """Releases the leases of a dead worker; its share of the tally stays."""
        self.roster.clear(index)
        for ledger in self.ledgers.values():
            ledger.clear(index)

    def places(self) -> Places:
        """Returns where this node counts what is in flight, for the generation after it."""
        return {model: ledger.places for model, ledger in self.ledgers.items()}

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
            self.ledgers[model.id].adopt(*first_policy(model, self.policies, self.learned))
        for dry in self.dry.values():
            dry.begin(time.monotonic())
