"""The latest evidence of every place, in memory that all workers of the node read and one of them writes.

In: Evidence from the worker that watches engines. Out: Evidence in any worker.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict

import orjson

from gateway.evidence.fingerprint import Change, Fingerprint, find_changes
from gateway.evidence.values import UNKNOWN, Evidence, Identity, Place
from gateway.shared import Seat

TEXT_BYTES = 32 * 1024  # a dozen values of 256 characters take a third; pages never written cost nothing

GENERATION, LENGTH = 0, 1  # words: which of two texts is in force, and the length of each


class LatestEvidence:
    """A writer may be killed at any instant, so it writes where nobody reads, and one store puts that in force."""

    def __init__(self, places: Iterable[Place], seat: Seat) -> None:
        self._lock = seat.lock
        self._words = {place: seat.memory.ints(3) for place in places}
        self._texts = {place: [seat.memory.raw(TEXT_BYTES) for _ in range(2)] for place in self._words}

    @property
    def places(self) -> Collection[Place]:
        return self._words.keys()

    def publish(self, place: Place, evidence: Evidence) -> None:
        words, text = self._words[place], orjson.dumps(asdict(evidence))
        with self._lock:
            generation = words[GENERATION] + 1
            self._texts[place][generation % 2][: len(text)] = text
            words[LENGTH + generation % 2] = len(text)
            words[GENERATION] = generation

    def read(self, place: Place) -> Evidence:
        """Returns the latest evidence; UNKNOWN before the first was published, and for a place that is not watched."""
        if (words := self._words.get(place)) is None:
            return UNKNOWN
        with self._lock:
            current = words[GENERATION] % 2
            text = bytes(self._texts[place][current][: words[LENGTH + current]])
        return Evidence(**orjson.loads(text)) if text else UNKNOWN

    def identities(self, model: str) -> dict[str, Identity]:
        """Returns the identities of the engines that serve a model, by backend."""
        return {place.backend: self.read(place).identity for place in self.places if place.model == model}

    def find_changes(self, model: str, fingerprint: Fingerprint | None) -> tuple[Change, ...]:
        """Returns how a model's engines differ from those a policy was measured on; empty without a fingerprint."""
        return find_changes(fingerprint or {}, self.identities(model))
