"""Every number of the node's traffic in shared memory: a row per worker, each word written by that worker alone.

In: one call when an attempt ends. Out: sums over the rows. A worker that takes over a dead one's row counts on from
there, so no counter ever goes back. Knows no Prometheus.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from gateway.metrics.names import CAPACITY, Names
from gateway.shared import Ints, Seat, as_floats

Backends: TypeAlias = Mapping[str, Collection[str]]  # of each model

TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
TPOT_BUCKETS_S = (0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)
E2E_BUCKETS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300)

# Words of a row: first the worker's own, then refusals by code, then for every backend of every model its traffic twice
# (users' and runs') and three histograms.
TASKS, REFUSED = 0, 1
PROMPT, COMPLETION, EVENTS, MOVES, MOVED_TOKENS, OUTCOMES = range(6)  # words of a traffic
TRAFFIC_WORDS = OUTCOMES + CAPACITY
MAX_WORD = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """A count for each bucket, one for what lies beyond them, and the sum; `start` is the first word in a row."""

    start: int
    bounds: Sequence[float]
    sum: int

    @classmethod
    def at(cls, start: int, bounds: Sequence[float]) -> Self:
        return cls(start, bounds, start + len(bounds) + 1)

    @property
    def end(self) -> int:
        return self.sum + 1


@dataclass(frozen=True, slots=True)
class Pair:
    """The indexes in a row at which the words of one backend of one model begin. `index`: of the pair among all."""

    index: int
    users: int
    runs: int
    ttft: Histogram
    tpot: Histogram
    e2e: Histogram

    @classmethod
    def at(cls, index: int, start: int) -> Self:
        runs = start + TRAFFIC_WORDS
        ttft = Histogram.at(runs + TRAFFIC_WORDS, TTFT_BUCKETS_S)
        tpot = Histogram.at(ttft.end, TPOT_BUCKETS_S)
        return cls(index, start, runs, ttft, tpot, Histogram.at(tpot.end, E2E_BUCKETS_S))


def _place(backends: Backends) -> Mapping[tuple[str, str], Pair]:
    labels = [(model, backend) for model, names in backends.items() for backend in names]
    first = REFUSED + CAPACITY
    words = Pair.at(0, first).e2e.end - first
    return {label: Pair.at(index, first + index * words) for index, label in enumerate(labels)}


class Tally:
    """Counts. `pairs`: where each backend of each model is counted in a row. `total`, `seconds`: sums of all rows."""

    def __init__(self, backends: Backends, seat: Seat) -> None:
        self.pairs = _place(backends)
        self.names = Names(seat)
        words = max((pair.e2e.end for pair in self.pairs.values()), default=REFUSED + CAPACITY)
        self._counts = [seat.memory.ints(words) for _ in range(seat.workers)]
        self._sums = [as_floats(row) for row in self._counts]
        self._own_counts = self._counts[seat.index]
        self._own_sums = self._sums[seat.index]

    def count(self, traffic: int, outcome: str, prompt_tokens: int, completion_tokens: int, events: int = 0) -> None:
        """Counts one more attempt; `traffic` is a pair's `users` or `runs`."""
        row = self._own_counts
        row[traffic + OUTCOMES + self.names.number(outcome)] += 1
        _add(row, traffic + PROMPT, prompt_tokens)
        _add(row, traffic + COMPLETION, completion_tokens)
        if events:
            _add(row, traffic + EVENTS, events)

    def count_move(self, traffic: int, tokens: int) -> None:
        """Counts one more generation that came in mid-answer, with the tokens that had to be prefilled again."""
        row = self._own_counts
        row[traffic + MOVES] += 1
        _add(row, traffic + MOVED_TOKENS, tokens)

    def observe(self, histogram: Histogram, seconds: float) -> None:
        self._own_counts[histogram.start + bisect_left(histogram.bounds, seconds)] += 1
        self._own_sums[histogram.sum] += seconds

    def refuse(self, code: str) -> None:
        self._own_counts[REFUSED + self.names.number(code)] += 1

    def note_tasks(self, tasks: int) -> None:
        self._own_counts[TASKS] = tasks

    def total(self, word: int) -> int:
        return sum(row[word] for row in self._counts)

    def by_name(self, start: int) -> Iterator[tuple[str, int]]:
        """Yields every name that was counted in the words from `start` on, and how often."""
        for number, name in enumerate(self.names.read()):
            if count := self.total(start + number):
                yield name, count

    def seconds(self, histogram: Histogram) -> float:
        return sum(row[histogram.sum] for row in self._sums)

    def buckets(self, histogram: Histogram) -> list[tuple[float, int]]:
        """Returns the upper bounds, the last one infinite, each with the number of observations up to it."""
        cumulative, buckets = 0, []
        for index, bound in enumerate((*histogram.bounds, float("inf"))):
            cumulative += self.total(histogram.start + index)
            buckets.append((bound, cumulative))
        return buckets

    def tasks(self, worker: int) -> int:
        return self._counts[worker][TASKS]


def _add(row: Ints, word: int, amount: int) -> None:
    """Adds to a counter, which never falls and stops at MAX_WORD: engines may report any amount."""
    if amount > 0:
        try:
            row[word] += amount
        except ValueError:
            row[word] = MAX_WORD
