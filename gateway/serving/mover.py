"""The beat of a worker: it reports what runs, has the policy plan, and lets answers leave the backends to be left.

In: one worker's answers under way. Out: the demand, for routing; Dispatch.go_elsewhere, for as many tokens a second as
engines may prefill again beside their other work.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from gateway.core import Leaving
from gateway.metrics import Metrics
from gateway.routing import BEAT_S, Held, Lease, Lengths, Router
from gateway.serving.dispatch import Dispatch
from gateway.serving.work import Extent, Work

logger = logging.getLogger(__name__)

BURST_S = 0.1  # what was not used before counts for so long


class _Running(NamedTuple):
    """One answer under way."""

    dispatch: Dispatch
    work: Work
    lease: Lease
    extent: Extent


class Mover:
    """`tokens_per_s`: how many tokens a model's moves may have engines prefill, over all the node's `workers`."""

    def __init__(
        self, live: Collection[Dispatch], router: Router, metrics: Metrics, tokens_per_s: float, workers: int
    ) -> None:
        self._live = live
        self._router = router
        self._metrics = metrics
        self._tokens_per_s = tokens_per_s
        self._workers = workers
        self._budgets: Mapping[str, float] = {}  # by model; what does not move has saved all that it may

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Plans and moves while inside."""
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(self._run())
            try:
                yield
            finally:
                beats.cancel()

    def beat(self) -> None:
        """Plans, and moves the answers that may go now."""
        if self._router.plans():
            lengths = self._metrics.renew_lengths()
            sums = {name: Lengths(table.weight, table.tokens, table.prompt_tokens) for name, table in lengths.items()}
            self._router.plan(_sum(self._find_running(), self._metrics.generated), sums)
        left = self._router.find_left()
        budgets = {model: self._renew(model, leaving) for model, leaving in left.items()}
        if left:
            self._move(left, budgets)
        self._budgets = budgets

    def _renew(self, model: str, leaving: Leaving) -> float:
        """Returns how many tokens may move now: what the engine to go to prefills, if it is known, sets the pace."""
        tokens_per_s = min(self._tokens_per_s, leaving.terms.tokens_per_s) / self._workers
        return min(self._budgets.get(model, math.inf) + BEAT_S * tokens_per_s, BURST_S * tokens_per_s)

    def _move(self, left: Mapping[str, Leaving], budgets: dict[str, float]) -> None:
        """Moves those with the fewest tokens first: they cost least and last longest."""
        movable = [
            running
            for running in self._find_running()
            if (leaving := left.get(running.work.request.model))
            and running.lease.route.backend in leaving.backends
            and _is_free(running)
            and running.extent.left >= leaving.terms.min_left
        ]
        moved = []
        for running in sorted(movable, key=lambda running: running.extent.context):
            model = running.work.request.model
            if budgets[model] <= 0:
                continue
            budgets[model] -= running.extent.context
            running.dispatch.go_elsewhere(running.work.barred | left[model].backends)
            moved.append(running.work.request.request_id)
        if moved:
            backends = ", ".join(sorted(set().union(*(leaving.backends for leaving in left.values()))))
            logger.info("moved %d answers away from %s: requests %s", len(moved), backends, " ".join(moved))

    def _find_running(self) -> Iterable[_Running]:
        for dispatch in self._live:
            work, lease, attempt = dispatch.work, dispatch.lease, dispatch.attempt
            if work is not None and lease is not None and attempt is not None:
                yield _Running(dispatch, work, lease, attempt.measure())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self.beat()
            # Edge of a background loop: a fault in one beat must not end all later ones.
            except Exception:
                logger.exception("a beat failed")


def _is_free(running: _Running) -> bool:
    return running.extent.may_move and running.work.request.pin is None


def _sum(answers: Iterable[_Running], ended: Mapping[tuple[str, str], int]) -> Mapping[str, Mapping[str, Held]]:
    """Sums by model and backend, without what does not steer. `ended`: the tokens of answers that are over."""
    sums: defaultdict[str, dict[str, Held]] = defaultdict(dict)
    for (model, backend), tokens in ended.items():
        sums[model][backend] = Held(generated=tokens)
    for running in answers:
        backend, extent = running.lease.route.backend, running.extent
        if sequences := running.lease.steers_at(backend):
            before = sums[running.work.request.model].get(backend, Held())
            fixed, context = (0, extent.context) if _is_free(running) else (sequences, 0)
            sums[running.work.request.model][backend] = Held(
                before.fixed + fixed,
                before.context + context,
                before.generated + extent.generated,
            )
    return sums
