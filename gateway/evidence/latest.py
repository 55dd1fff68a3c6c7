"""The latest evidence of every place, in memory that all workers of the node read and one of them writes.

In: Evidence from the worker that watches engines. Out: Evidence in any worker.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Self

import orjson

from gateway.evidence.fingerprint import Change, Fingerprint, find_changes
from gateway.evidence.values import UNKNOWN, Evidence, Identity, Place
from gateway.shared import Plan, Seat, Span

TEXT_BYTES = 32 * 1024  # a dozen values of 256 characters take a third; pages never written cost nothing

GENERATION, LENGTH = 0, 1  # words: which of two texts is in force, and the length of each


@dataclass(frozen=True, slots=True)
class EvidenceSpans:
    """The spans in which each place's evidence lies."""

    words: tuple[Span, ...]
    texts: tuple[tuple[Span, Span], ...]

    @classmethod
    def lay(cls, plan: Plan, places: Collection[Place]) -> Self:
        return cls(
            words=tuple(plan.words(3) for _ in places),
            texts=tuple((plan.raw(TEXT_BYTES), plan.raw(TEXT_BYTES)) for _ in places),
        )


class LatestEvidence:
    """A writer may be killed at any instant, so it writes where nobody reads, and one store puts that in force."""

    def __init__(self, places: Iterable[Place], spans: EvidenceSpans, seat: Seat) -> None:
        self._lock = seat.lock
        self._words = {place: seat.memory.ints(span) for place, span in zip(places, spans.words, strict=True)}
        self._texts = {
            place: [seat.memory.raw(span) for span in texts]
            for place, texts in zip(self._words, spans.texts, strict=True)
        }

    @classmethod
    def alone(cls, places: Collection[Place]) -> Self:
        """Returns the evidence of a process that is the only worker."""
        plan = Plan()
        spans = EvidenceSpans.lay(plan, places)
        return cls(places, spans, Seat.alone(plan.size))

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
