"""One model's coming load, over all workers of the node: what arrives, what runs, how much of it may go elsewhere.

In: one worker's counts. Out: the core.Demand of the node, at most once a beat, whichever worker asks first.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Self

from gateway.core import Arrivals, BackendDemand, Demand
from gateway.shared import Floats, Ints, Plan, Seat, Span

SAMPLES = 64
BEAT_S = 0.05
FIXED, CONTEXT, GENERATED = range(3)  # words of what a worker holds at a backend
WEIGHT, TOKENS, PROMPTS = range(3)  # words of its recent answers' lengths
COUNTED, RECENT = range(2)  # words of what arrives: as of the last sample, and how much of it lately
LATELY_S = 20.0  # after which an arrival counts a third


@dataclass(frozen=True, slots=True)
class DemandSpans:
    """The spans of one model's demand. Each worker has words of its own in all but the ring and the mix, which the lock
    guards. `mix`: of all that arrives, and of what each backend alone may get.
    """

    arrived: Span
    fixed: tuple[Span, ...]
    held: tuple[tuple[Span, ...], ...]
    lengths: tuple[Span, ...]
    count: Span
    ring: Span
    mix: tuple[Span, ...]

    @classmethod
    def lay(cls, plan: Plan, backends: Collection[str], workers: int) -> Self:
        return cls(
            arrived=plan.words(workers),
            fixed=tuple(plan.words(workers) for _ in backends),
            held=tuple(tuple(plan.words(workers) for _ in range(3)) for _ in backends),
            lengths=tuple(plan.words(workers) for _ in range(3)),
            count=plan.words(1),
            ring=plan.words(2 * SAMPLES),
            mix=tuple(plan.words(2) for _ in range(len(backends) + 1)),
        )


class Held(NamedTuple):
    """What one worker has in flight at a backend: `fixed` sequences that cannot run elsewhere, and of the others how
    many tokens another engine would prefill. `generated`: all tokens that it has received from there, also those of
    answers that have ended.
    """

    fixed: int = 0
    context: int = 0
    generated: int = 0


class Lengths(NamedTuple):
    """Sums over one worker's recent answers: their weight, their tokens, and the tokens of their prompts."""

    weight: float
    tokens: float
    prompt_tokens: float


NO_LENGTHS = Lengths(0.0, 0.0, 0.0)


class DemandCounts:
    """The counts of one worker's seat, and sums over all workers. Only `sample` needs the node's lock."""

    def __init__(self, backends: Collection[str], spans: DemandSpans, seat: Seat) -> None:
        memory = seat.memory
        self._backends = tuple(backends)
        self._seat = seat.index
        self._arrived = memory.ints(spans.arrived)
        self._fixed = {name: memory.ints(span) for name, span in zip(backends, spans.fixed, strict=True)}
        self._held: Mapping[str, tuple[Ints, ...]] = {
            name: tuple(map(memory.ints, words)) for name, words in zip(backends, spans.held, strict=True)
        }
        self._lengths: tuple[Floats, ...] = tuple(map(memory.floats, spans.lengths))
        self._count = memory.ints(spans.count)
        self._ring = memory.floats(spans.ring)
        self._all, *fixed = map(memory.floats, spans.mix)
        self._mix = dict(zip(backends, fixed, strict=True))

    def arrive(self, sequences: int, only: str | None) -> None:
        """Counts a request. `only`: the one backend that it may go to."""
        self._arrived[self._seat] += sequences
        if only is not None:
            self._fixed[only][self._seat] += sequences

    def note(self, held: Mapping[str, Held], lengths: Lengths) -> None:
        """Replaces what this worker holds, and its recent answers' lengths."""
        for name in self._backends:
            for words, value in zip(self._held[name], held.get(name, Held()), strict=True):
                words[self._seat] = value
        weight, tokens, prompts = self._lengths
        weight[self._seat], tokens[self._seat], prompts[self._seat] = lengths

    def clear(self, worker: int) -> None:
        """Forgets what a dead worker held. What had arrived stays counted: a rate never turns negative."""
        for words in chain(*self._held.values()):
            words[worker] = 0
        for sums in self._lengths:
            sums[worker] = 0.0

    def sample(self, in_flight: Mapping[str, int], now: float) -> Demand | None:
        """Returns the demand; None if another worker has asked in this beat. Call it with the lock.

        `in_flight`: by backend, without what does not steer.
        """
        count, ring = self._count[0], self._ring
        newest = 2 * ((count - 1) % SAMPLES)
        # A little early is in time: a beat that waits for the next one would be two beats.
        if count and 0 <= now - ring[newest] < 0.9 * BEAT_S:
            return None
        kept = math.exp(min(ring[newest] - now, 0.0) / LATELY_S) if count else 0.0
        ring[2 * (count % SAMPLES)] = now
        ring[2 * (count % SAMPLES) + 1] = arrived = sum(self._arrived)
        _count_lately(self._all, arrived, kept)
        for name, words in self._mix.items():
            _count_lately(words, sum(self._fixed[name]), kept)
        self._count[0] = count = count + 1
        weight, tokens, prompts = (sum(words) for words in self._lengths)
        return Demand(
            arrivals=self._read_ring(count),
            backends={name: self._read_backend(name, in_flight[name]) for name in self._backends},
            prompt_tokens=prompts / weight if weight else 0.0,
            answer_tokens=tokens / weight if weight else 0.0,
        )

    def _read_ring(self, count: int) -> tuple[Arrivals, ...]:
        starts = (2 * (index % SAMPLES) for index in range(max(count - SAMPLES, 0), count))
        return tuple(Arrivals(self._ring[start], int(self._ring[start + 1])) for start in starts)

    def _read_backend(self, name: str, in_flight: int) -> BackendDemand:
        fixed, context, generated = (sum(words) for words in self._held[name])
        share = self._mix[name][RECENT] / self._all[RECENT] if self._all[RECENT] else 0.0
        return BackendDemand(in_flight, min(fixed, in_flight), share, context, generated)


def _count_lately(words: Floats, total: float, kept: float) -> None:
    """Adds what has arrived since the last sample. Of all that arrived before, the share `kept` still counts."""
    words[RECENT] = words[RECENT] * kept + total - words[COUNTED]
    words[COUNTED] = total
