"""How a balancer picks a node: one class each.

In: the requests that the balancer placed itself, and their ends. Out: a node's index.
"""

import random


class Random:
    """Picks any node that is up. The base class: it counts its own requests in flight and knows which nodes are up."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self._up = list(range(nodes))
        self._chance = chance
        self._counts = [0] * nodes
        self._changes = 0
        self._changed_at = list(range(-nodes, 0))  # in changes of counts

    def place(self) -> int:
        """Returns a node that is up, and counts the request as placed there."""
        node = self._choose()
        self._change(node, 1)
        return node

    def ended(self, node: int) -> None:
        self._change(node, -1)

    def mark(self, node: int, *, is_up: bool) -> None:
        """Notes that a node went down with all its requests, or came back empty."""
        self._up = sorted({*self._up, node} if is_up else {*self._up} - {node})
        self._change(node, -self._counts[node])

    def _choose(self) -> int:
        return self._up[int(self._chance.random() * len(self._up))]

    def _change(self, node: int, more: int) -> None:
        self._counts[node] += more
        self._changes += 1
        self._changed_at[node] = self._changes


class RoundRobin(Random):
    def __init__(self, nodes: int, chance: random.Random) -> None:
        super().__init__(nodes, chance)
        self._next = chance.randrange(nodes)

    def _choose(self) -> int:
        self._next += 1
        return self._up[self._next % len(self._up)]


class PowerOfTwo(Random):
    """Draws two nodes at random and picks the one with fewer of this balancer's own requests in flight.

    M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12 (2001).
    """

    def _choose(self) -> int:
        one, other = super()._choose(), super()._choose()
        return one if self._counts[one] <= self._counts[other] else other


class LeastInFlight(Random):
    """Picks the node with the fewest of this balancer's own requests in flight; among equals the longest waiting one.

    HAProxy's `leastconn` does the same: its tree takes a server back behind its equals.
    """

    def __init__(self, nodes: int, chance: random.Random) -> None:
        super().__init__(nodes, chance)
        order = list(range(nodes))
        chance.shuffle(order)
        self._changed_at = [order.index(node) - nodes for node in range(nodes)]

    def _choose(self) -> int:
        return min(self._up, key=lambda node: (self._counts[node], self._changed_at[node]))
