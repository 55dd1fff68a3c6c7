"""The readiness of a backend: probed at intervals, and marked down at once when a request could not reach it.

In: a Backend's own `is_ready`; of one that is ejected, a token now and then. Out: one flag, and a log line whenever it
changes. Knows no policy.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress

from gateway.background import running
from gateway.core import Backend, TokenBackend
from gateway.routing.conduct import Conduct, Stage
from gateway.routing.trial import generates
from gateway.settings import ProbeSettings

logger = logging.getLogger(__name__)


class Health:
    """One backend's readiness as this worker knows it; not ready until a first probe finds it ready.

    `was_ready`: some probe has found it ready by now. `report` is called after every probe, and for every doubt.
    `conduct`: how its requests end. A backend that is not ready begins anew: another server may come in its place.
    """

    def __init__(
        self,
        backend: Backend,
        settings: ProbeSettings,
        label: str,
        report: Callable[[bool], object] = bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_ready = self.was_ready = False
        self.conduct = Conduct()
        self._clock = clock
        self._report = report
        self.probed = asyncio.Event()
        self._backend = backend
        self._settings = settings
        self._label = label
        self._is_doubted = False  # since the probe under way began
        self._woken = asyncio.Event()

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
        self._is_doubted = True
        self._woken.set()

    async def watch(self) -> None:
        """Probes for ever: at one interval while it is ready, at a shorter one while it is not."""
        while True:
            await self._probe()
            if self.is_ready and self.conduct.wants_token(self._clock()):
                await self._try()
            await self._rest()

    def eject(self, why: str) -> None:
        """Lets it get no requests until it passes a trial."""
        if self.conduct.stage is not Stage.OUT:
            logger.warning("backend %s is ejected: %s", self._label, why)
        self.conduct.eject(self._clock())
        self._woken.set()  # from here on it is probed at the shorter interval

    async def _try(self) -> None:
        """Has it generate a token; one that only relays is tried with requests at once."""
        began = self._clock()
        backend = self._backend
        is_well = not isinstance(backend, TokenBackend) or await self._ask(generates(backend), "trial")
        if is_well:
            self.conduct.try_requests(self._clock())
            logger.info("backend %s generates again: it is tried with some requests", self._label)
        else:
            self.conduct.eject(began)  # a trial that waited for its token in vain has been a pause already

    async def _probe(self) -> None:
        self._is_doubted = False
        self._woken.clear()
        is_ready = await self._ask(self._backend.is_ready(), "probe")
        if not is_ready:
            self.conduct.forget()
        # A request that failed during the probe is newer evidence than the probe's answer.
        self._update(is_ready and not self._is_doubted)

    async def _ask(self, question: Coroutine[object, object, bool], kind: str) -> bool:
        try:
            return await question
        # Edge of a background loop: a fault in one adapter must not end the probing of all the others.
        except Exception:
            logger.exception("%s of backend %s raised; taken as failed", kind, self._label)
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
        if self._is_well():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval_s):
                    await self._woken.wait()
        # After a doubt too: a server that passes probes and fails requests is then tried at most once per interval.
        if not self._is_well():
            await asyncio.sleep(self._settings.down_interval_s)

    def _is_well(self) -> bool:
        return self.is_ready and self.conduct.stage is Stage.IN


@asynccontextmanager
async def watching(healths: Collection[Health]) -> AsyncIterator[None]:
    """Probes every backend while inside; the block begins once each has been probed a first time."""
    async with running(*(health.watch() for health in healths)):
        for health in healths:
            await health.probed.wait()
        yield
