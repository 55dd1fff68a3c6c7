"""One model's coming load, over all workers of the node: what arrives, what runs, how much of it may go elsewhere.

In: one worker's counts. Out: the core.Demand of the node, at most once a beat, whichever worker asks first.
"""

import math
from array import array
from collections.abc import Collection, Mapping
from itertools import chain

from gateway.core import Arrivals, BackendDemand, Demand
from gateway.flow import ModelFlow, count_words, read_firsts, read_prompts, read_standing
from gateway.lengths import WORDS, Survival, estimate, find_usual
from gateway.shared import Floats, Seat

SAMPLES = 128
BEAT_S = 0.05
COUNTED, RECENT = range(2)  # words of what arrives: as of the last sample, and how much of it lately
LATELY_S = 20.0  # after which an arrival counts a third


class DemandCounts:
    """The counts of one worker's seat, and sums over all workers. Only `sample` needs the node's lock.

    `flow`: this worker's answers under way.
    """

    def __init__(self, backends: Collection[str], seat: Seat) -> None:
        memory, workers = seat.memory, seat.workers
        self.flow = ModelFlow(backends)
        self._backends = tuple(backends)
        self._seat = seat.index
        # Each worker has words of its own.
        self._arrived = memory.ints(workers)
        self._fixed = {name: memory.ints(workers) for name in backends}
        self._rows = [memory.floats(count_words(len(backends))) for _ in range(workers)]
        # The lock guards these: what was taken of first tokens, the ring, and the mix: of all that arrives, and of what
        # each backend alone may get.
        self._taken = [memory.ints(workers) for _ in backends]
        self._count, self._ring = memory.ints(1), memory.floats(2 * SAMPLES)
        self._all = memory.floats(2)
        self._mix = {name: memory.floats(2) for name in backends}

    def arrive(self, sequences: int, only: str | None, prompt_tokens: int) -> None:
        """Counts a request. `only`: the one backend that it may go to. `prompt_tokens`: 0 where nobody counts them."""
        self._arrived[self._seat] += sequences
        if only is not None:
            self._fixed[only][self._seat] += sequences
        if prompt_tokens:
            self.flow.arrive(prompt_tokens)

    def note(self) -> None:
        """Lets the other workers read what this one's answers amount to now."""
        self._rows[self._seat][:] = memoryview(array("d", self.flow.words()))

    def clear(self, worker: int) -> None:
        """Forgets what a dead worker held. What had arrived stays counted: a rate never turns negative."""
        row = self._rows[worker]
        row[:] = memoryview(array("d", bytes(8 * len(row))))
        for words in self._taken:
            words[worker] = 0

    def find_lengths(self) -> Survival:
        """Returns how long answers are."""
        return estimate([row[:WORDS].tolist() for row in self._rows])

    def find_cached(self) -> Mapping[str, float]:
        """Returns by backend which part of its prompts' tokens its cache held; no entry where it reports none."""
        shares = {}
        for index, name in enumerate(self._backends):
            standings = [read_standing(row, index) for row in self._rows]
            if found := sum(standing.found for standing in standings):
                shares[name] = found / sum(standing.queried for standing in standings)
        return shares

    def sample(self, in_flight: Mapping[str, int], foreign: Mapping[str, int], now: float) -> Demand | None:
        """Returns the demand; None if another worker has asked in this beat. Call it with the lock.

        `in_flight`: by backend, without what does not steer, which is `foreign`.
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
        rows = [list(row) for row in self._rows]
        backends = {
            name: self._read_backend(rows, index, in_flight[name], foreign[name])
            for index, name in enumerate(self._backends)
        }
        known = self.find_cached()
        if known:
            usual = sum(known.values()) / len(known)
            backends = {name: each._replace(cached=known.get(name, usual)) for name, each in backends.items()}
        prompts = tuple(chain.from_iterable(map(read_prompts, rows)))
        return Demand(self._read_ring(count), backends, prompts, find_usual(rows, prompts))

    def _read_ring(self, count: int) -> tuple[Arrivals, ...]:
        starts = (2 * (index % SAMPLES) for index in range(max(count - SAMPLES, 0), count))
        return tuple(Arrivals(self._ring[start], int(self._ring[start + 1])) for start in starts)

    def _read_backend(self, rows: list[list[float]], index: int, in_flight: int, foreign: int) -> BackendDemand:
        standings = [read_standing(row, index) for row in rows]
        firsts, taken = [], self._taken[index]
        for worker, (row, standing) in enumerate(zip(rows, standings, strict=True)):
            firsts += read_firsts(row, index, standing.begun - taken[worker])
            taken[worker] = standing.begun
        fixed, relayed, decoding, held, context, generated, *_ = map(sum, zip(*standings, strict=True))
        words = self._mix[self._backends[index]]
        share = words[RECENT] / self._all[RECENT] if self._all[RECENT] else 0.0
        return BackendDemand(
            in_flight,
            min(fixed, in_flight),
            share,
            min(decoding, in_flight),
            held,
            context,
            generated,
            tuple(sorted(firsts)),
            foreign + relayed,
        )


def _count_lately(words: Floats, total: float, kept: float) -> None:
    """Adds what has arrived since the last sample. Of all that arrived before, the share `kept` still counts."""
    words[RECENT] = words[RECENT] * kept + total - words[COUNTED]
    words[COUNTED] = total
