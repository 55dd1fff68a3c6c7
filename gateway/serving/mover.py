"""The beat of a worker: it has the policy plan, and lets answers leave the backends to be left or that are stuck, and
those that nobody reads make room.

In: one worker's answers under way. Out: Dispatch.go_elsewhere, for as many tokens a second as engines may prefill again
beside their other work; what a stuck engine has goes at once.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator
from contextlib import AbstractAsyncContextManager

from gateway.background import running
from gateway.core import Leaving
from gateway.routing import BEAT_S, Extent, MoveBudget, Router
from gateway.serving.dispatch import Dispatch

logger = logging.getLogger(__name__)


class Mover:
    """`tokens_per_s`: how many tokens a model's moves may have engines prefill, over all the node's `workers`; None: as
    many as they can.
    """

    def __init__(self, live: Collection[Dispatch], router: Router, tokens_per_s: float | None, workers: int) -> None:
        self._live = live
        self._router = router
        self._tokens_per_s = tokens_per_s
        self._workers = workers
        self._budgets: dict[str, MoveBudget] = {}  # by model

    def running(self) -> AbstractAsyncContextManager[None]:
        """Plans and moves while inside."""
        return running(self._run())

    def beat(self) -> None:
        """Lets requests go on that wait, plans, and moves the answers that may go now."""
        if awaited := self._router.admit():
            for dispatch in tuple(self._live):
                if dispatch.work is not None and dispatch.work.request.model in awaited:
                    dispatch.give_place()
        for model, stuck in self._router.find_stuck().items():
            for dispatch in tuple(self._live):
                if dispatch.work is not None and dispatch.work.request.model == model:
                    dispatch.leave(stuck)
        self._router.plan()
        left = self._router.find_left()
        self._budgets = {
            model: self._budgets.get(model) or MoveBudget(self._tokens_per_s, self._workers) for model in left
        }
        for model, leaving in left.items():
            self._move(model, leaving)

    def _move(self, model: str, leaving: Leaving) -> None:
        moved = []
        for dispatch in self._budgets[model].choose(list(self._find_running(model, leaving)), leaving.terms):
            work = dispatch.work
            assert work is not None  # whoever runs has work
            dispatch.go_elsewhere(work.barred | leaving.backends)
            moved.append(work.request.request_id)
        if moved:
            backends = ", ".join(sorted(leaving.backends))
            logger.info("moved %d answers away from %s: requests %s", len(moved), backends, " ".join(moved))

    def _find_running(self, model: str, leaving: Leaving) -> Iterator[tuple[Dispatch, Extent]]:
        """Yields the model's answers at backends to be left, but for those that clients have pinned there."""
        lengths = None
        for dispatch in self._live:
            work, lease, attempt = dispatch.work, dispatch.lease, dispatch.attempt
            if work is None or lease is None or attempt is None or work.request.model != model:
                continue
            if dispatch.loss is None and lease.route.backend in leaving.backends and work.request.pin is None:
                lengths = lengths or self._router.find(model).find_lengths()
                yield dispatch, attempt.measure(lengths)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self.beat()
            # Edge of a background loop: a fault in one beat must not end all later ones.
            except Exception:
                logger.exception("a beat failed")
