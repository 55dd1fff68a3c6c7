"""The readiness of a backend: probed at intervals, and marked down at once when a request could not reach it.

In: a Backend's own `is_ready`. Out: one flag, and a log line whenever it changes. Knows no policy.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from gateway.core import Backend
from gateway.settings import ProbeSettings

logger = logging.getLogger(__name__)


class Health:
    """One backend's readiness as this worker knows it; not ready until a first probe finds it ready.

    `was_ready`: some probe has found it ready by now. `report` is called after every probe, and for every doubt.
    """

    def __init__(
        self, backend: Backend, settings: ProbeSettings, label: str, report: Callable[[bool], object] = bool
    ) -> None:
        self.is_ready = self.was_ready = False
        self._report = report
        self.probed = asyncio.Event()
        self._backend = backend
        self._settings = settings
        self._label = label
        self._doubted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Health {self._label} {'ready' if self.is_ready else 'down'}>"

    def doubt(self, why: str) -> None:
        """Marks it down after a request could not reach it, until a probe that begins later finds it ready.

        `why`: what the request's error says; it is logged.
        """
        if self.is_ready:
            logger.warning("backend %s is down: %s", self._label, why)
        self.is_ready = False
        self._report(False)
        self._doubted.set()

    async def watch(self) -> None:
        """Probes for ever: at one interval while it is ready, at a shorter one while it is not."""
        while True:
            await self._probe()
            await self._rest()

    async def _probe(self) -> None:
        self._doubted.clear()
        is_ready = await self._ask()
        # A request that failed during the probe is newer evidence than the probe's answer.
        self._update(is_ready and not self._doubted.is_set())

    async def _ask(self) -> bool:
        try:
            return await self._backend.is_ready()
        # Edge of a background loop: a fault in one adapter's probe must not end the probing of all the others.
        except Exception:
            logger.exception("probe of backend %s raised; taken as not ready", self._label)
            return False

    def _update(self, is_ready: bool) -> None:
        if is_ready and not self.is_ready:
            logger.info("backend %s is ready", self._label)
        elif not is_ready and (self.is_ready or not self.probed.is_set()):
            logger.warning("backend %s is not ready", self._label)
        self.is_ready = is_ready
        self.was_ready |= is_ready
        self._report(is_ready)
        self.probed.set()

    async def _rest(self) -> None:
        if self.is_ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval_s):
                    await self._doubted.wait()
        # After a doubt too: a server that passes probes and fails requests is then tried at most once per interval.
        if not self.is_ready:
            await asyncio.sleep(self._settings.down_interval_s)


@asynccontextmanager
async def watching(healths: Iterable[Health]) -> AsyncIterator[None]:
    """Probes every backend while inside; the block begins once each has been probed a first time."""
    async with asyncio.TaskGroup() as tasks:
        watchers = [(health, tasks.create_task(health.watch())) for health in healths]
        try:
            for health, _ in watchers:
                await health.probed.wait()
            yield
        finally:
            for _, watcher in watchers:
                watcher.cancel()
