"""Lets running answers leave a backend: because the policy has gone over to another, or because it is to be emptied.

In: one worker's answers under way, and the backends that they should leave. Out: Dispatch.move, for as many tokens a
second as engines may prefill again beside their other work.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from gateway.serving.dispatch import Dispatch

logger = logging.getLogger(__name__)

BEAT_S = 0.05
BURST_S = 0.1  # what was not used before counts for so long


class Mover:
    """`find_left`: by model the backends to leave. `tokens_per_s`: how many tokens this worker's moves may prefill."""

    def __init__(
        self, live: Collection[Dispatch], find_left: Callable[[], Mapping[str, frozenset[str]]], tokens_per_s: float
    ) -> None:
        self._live = live
        self._find_left = find_left
        self._tokens_per_s = tokens_per_s
        self._budget = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Moves answers while inside."""
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(self._run())
            try:
                yield
            finally:
                beats.cancel()

    def beat(self) -> None:
        """Moves the answers that may go now, those with the fewest tokens first: they cost least and last longest."""
        self._budget = min(self._budget + BEAT_S * self._tokens_per_s, BURST_S * self._tokens_per_s)
        if not (left := self._find_left()):
            return
        sized = [(dispatch.measure_move(left), dispatch) for dispatch in self._live]
        movable = sorted([pair for pair in sized if pair[0]], key=lambda pair: pair[0])
        count = 0
        for tokens, dispatch in movable:
            if self._budget <= 0:
                break
            self._budget -= tokens
            dispatch.move(left)
            count += 1
        if count:
            logger.info("moved %d answers away from %s", count, ", ".join(sorted(set().union(*left.values()))))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self.beat()
            # Edge of a background loop: a fault in one beat must not end all later moves.
            except Exception:
                logger.exception("a move failed")
