"""How a balancer picks a node: one class each, and what each knows of the nodes.

In: what it placed itself and what has ended, or a reading of all nodes. Out: a node's index. Pure but for its own seed.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Protocol


class Balancer(Protocol):
    """One instance among several that share nothing. It is told of the end of what it placed, and of nothing else."""

    def choose(self, now: float) -> int:
        """A node that is up, counted as its own from now on."""
        ...

    def ended(self, node: int) -> None: ...

    def mark(self, node: int, *, is_up: bool) -> None:
        """A node has gone, with all it had; or is back, with nothing."""
        ...


class Random:
    """Any node that is up."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self._up = list(range(nodes))
        self._chance = chance

    def choose(self, now: float) -> int:
        return self._up[int(self._chance.random() * len(self._up))]

    def ended(self, node: int) -> None: ...

    def mark(self, node: int, *, is_up: bool) -> None:
        self._up = sorted({*self._up, node} if is_up else {*self._up} - {node})


class RoundRobin(Random):
    """One after the other, from a place of its own."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        super().__init__(nodes, chance)
        self._next = chance.randrange(nodes)

    def choose(self, now: float) -> int:
        self._next += 1
        return self._up[self._next % len(self._up)]


class PowerOfTwo(Random):
    """The better of two nodes drawn at random, by what this instance has in flight on each.

    M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12 (2001).
    """

    def __init__(self, nodes: int, chance: random.Random) -> None:
        super().__init__(nodes, chance)
        self._counts = [0] * nodes

    def choose(self, now: float) -> int:
        one, other = super().choose(now), super().choose(now)
        node = one if self._counts[one] <= self._counts[other] else other
        self._counts[node] += 1
        return node

    def ended(self, node: int) -> None:
        self._counts[node] -= 1

    def mark(self, node: int, *, is_up: bool) -> None:
        super().mark(node, is_up=is_up)
        self._counts[node] = 0


class LeastInFlight:
    """The node with the fewest of this instance's own in flight; of equals the one that has been so for longest.

    As HAProxy's `leastconn`, whose tree takes a server back behind its equals. `seen` None: of what it placed itself.
    """

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self._counts = [0] * nodes
        self._up = [True] * nodes
        order = list(range(nodes))
        chance.shuffle(order)
        self._order = nodes
        # A heap of (count, when it came to be, node); entries that are no longer true are passed over.
        self._heap = [(0, place, node) for place, node in enumerate(order)]
        heapq.heapify(self._heap)
        self._last = {node: place for place, node in enumerate(order)}

    def choose(self, now: float) -> int:
        while True:
            _, order, node = self._heap[0]
            if self._up[node] and self._last[node] == order:
                self._count(node, 1)
                return node
            heapq.heappop(self._heap)

    def ended(self, node: int) -> None:
        self._count(node, -1)

    def mark(self, node: int, *, is_up: bool) -> None:
        self._up[node] = is_up
        self._count(node, -self._counts[node])

    def _count(self, node: int, more: int) -> None:
        self._counts[node] += more
        self._order += 1
        self._last[node] = self._order
        heapq.heappush(self._heap, (self._counts[node], self._order, node))


class Polled:
    """The node with the fewest in flight of all balancers together, as read every `every_s`; equals in random order.

    Nothing that it places itself moves its counts before the next reading.
    """

    def __init__(self, read: Callable[[], Sequence[int]], nodes: int, every_s: float, chance: random.Random) -> None:
        self._read = read
        self._every_s = every_s
        self._chance = chance
        self._due = chance.random() * every_s
        self._up = [True] * nodes
        self._best: list[int] = []
        self._counts: Sequence[int] = [0] * nodes
        self._find_best()

    def choose(self, now: float) -> int:
        if now >= self._due:
            self._counts = self._read()
            self._due = now + self._every_s
            self._find_best()
        return self._best[int(self._chance.random() * len(self._best))]

    def ended(self, node: int) -> None: ...

    def mark(self, node: int, *, is_up: bool) -> None:
        self._up[node] = is_up
        self._find_best()

    def _find_best(self) -> None:
        known = [(count, node) for node, count in enumerate(self._counts) if self._up[node]]
        least = min(known)[0]
        self._best = [node for count, node in known if count == least]
