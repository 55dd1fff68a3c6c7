"""Which answers leave their backend now: those with the fewest tokens first, as many as engines may prefill again; and
how many requests may be tried again after a fault.

In: what moves cost and may cost. Out: who moves. Pure; the workers of a gateway and the simulation share it.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from gateway.core import MoveTerms
from gateway.routing.demand import BEAT_S

BURST_S = 1.0  # what was not used before counts for so long

Answer = TypeVar("Answer")


class Extent(NamedTuple):
    """How far an answer is, in tokens: `context` is what another backend would prefill, `left` what is to be expected.

    `may_move`: it may go on at another backend now.
    """

    context: int = 0
    left: float = 0.0
    may_move: bool = False


class MoveBudget:
    """How many tokens may move. `tokens_per_s`: at most, over all the node's `workers`, of which this is one; None: as
    many as the engine to go to prefills.
    """

    def __init__(self, tokens_per_s: float | None = None, workers: int = 1) -> None:
        self._tokens_per_s = math.inf if tokens_per_s is None else tokens_per_s
        self._workers = workers
        self._left: float | None = None  # what does not move has saved all that it may

    def rest(self) -> None:
        """Nothing is to move in this beat."""
        self._left = None

    def choose(self, answers: Iterable[tuple[Answer, Extent]], terms: MoveTerms) -> Iterator[Answer]:
        """Yields the answers that move in this beat: what the engine to go to prefills sets the pace.

        They cost least and last longest who have the fewest tokens.
        """
        tokens_per_s = min(self._tokens_per_s, terms.tokens_per_s) / self._workers
        most = BURST_S * tokens_per_s
        left = most if self._left is None else min(self._left + BEAT_S * tokens_per_s, most)
        movable = [each for each in answers if each[1].may_move and each[1].left >= terms.min_left]
        for answer, extent in sorted(movable, key=lambda each: each[1].context):
            if left <= 0:
                break
            left -= extent.context
            yield answer
        self._left = left


RETRIES = 64  # at once, of all the node's workers
RETRY_SHARE = 0.2  # and of the requests that succeed


class RetryBudget:
    """How often requests of this worker may be tried again, so that a fault of all engines does not double the load."""

    def __init__(self, workers: int = 1) -> None:
        self._most = self._left = max(RETRIES / workers, 1.0)

    def earn(self, tries: float = RETRY_SHARE) -> None:
        """A request succeeded; or one did not use its try."""
        self._left = min(self._left + tries, self._most)

    def spend(self) -> bool:
        """Takes one try, if there is one."""
        may_try = self._left >= 1
        if may_try:
            self._left -= 1
        return may_try
