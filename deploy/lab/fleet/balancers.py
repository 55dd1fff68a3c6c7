"""How a balancer picks a node: one class each.

In: what the balancer placed itself, and what of it has ended. Out: a node's index.
"""

import heapq
import random


class Random:
    """Any node that is up. The base class: a balancer sees the ends of its own requests, and which nodes are up."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self._up = list(range(nodes))
        self._chance = chance

    def choose(self, now: float) -> int:
        """A node that is up. The request counts as placed there."""
        return self._up[int(self._chance.random() * len(self._up))]

    def ended(self, node: int) -> None: ...

    def mark(self, node: int, *, is_up: bool) -> None:
        """A node went down with all its requests, or came back empty."""
        self._up = sorted({*self._up, node} if is_up else {*self._up} - {node})


class RoundRobin(Random):
    def __init__(self, nodes: int, chance: random.Random) -> None:
        super().__init__(nodes, chance)
        self._next = chance.randrange(nodes)

    def choose(self, now: float) -> int:
        self._next += 1
        return self._up[self._next % len(self._up)]


class PowerOfTwo(Random):
    """The better of two nodes drawn at random, by this balancer's own requests in flight.

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


class LeastInFlight(Random):
    """The node with the fewest of this balancer's own requests in flight; among equals the one that waited longest.

    As HAProxy's `leastconn`, whose tree takes a server back behind its equals.
    """

    def __init__(self, nodes: int, chance: random.Random) -> None:
        super().__init__(nodes, chance)
        self._counts = [0] * nodes
        self._is_up = [True] * nodes
        chance.shuffle(self._up)
        self._order = nodes
        # A heap of (count, when it came to be, node). Entries that are out of date are skipped.
        self._heap = [(0, place, node) for place, node in enumerate(self._up)]
        self._last = {node: place for place, node in enumerate(self._up)}

    def choose(self, now: float) -> int:
        while True:
            _, order, node = self._heap[0]
            if self._is_up[node] and self._last[node] == order:
                self._count(node, 1)
                return node
            heapq.heappop(self._heap)

    def ended(self, node: int) -> None:
        self._count(node, -1)

    def mark(self, node: int, *, is_up: bool) -> None:
        self._is_up[node] = is_up
        self._count(node, -self._counts[node])

    def _count(self, node: int, more: int) -> None:
        self._counts[node] += more
        self._order += 1
        self._last[node] = self._order
        heapq.heappush(self._heap, (self._counts[node], self._order, node))
