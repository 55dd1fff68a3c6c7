"""The keys and the hosts of one gateway together, as the routes are handed them, and what keys use."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from gateway.access.hosts import OwnHosts
from gateway.access.key_file import KeyFile
from gateway.access.keyring import Keyring
from gateway.access.meter import Meter
from gateway.access.usage import UsageLog
from gateway.background import running
from gateway.settings import Settings

logger = logging.getLogger(__name__)

KEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Access:
    """`open_metrics`: /metrics is for everyone, whatever keys there are."""

    keyring: Keyring
    hosts: OwnHosts
    meter: Meter
    usage: UsageLog
    open_metrics: bool

    @classmethod
    def open(cls, settings: Settings, *, audits: bool = True) -> Self:
        """Raises KeyFileUnreadable."""
        folder = settings.state_folder
        keyring = Keyring(settings.operator_key, KeyFile(folder), audits=audits)
        hosts = OwnHosts(settings.listen_host, settings.allowed_hosts)
        return cls(keyring, hosts, Meter.open(folder), UsageLog(folder), settings.open_metrics)

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Puts changes of keys in force, writes their use, and gives back what dead workers had under way."""
        try:
            async with running(self.keyring.watch(), self._keep()):
                yield
        finally:
            await self.usage.write()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            try:
                self.meter.sweep()
            except Exception:  # an edge: its end would be the worker's
                logger.exception("what keys use cannot be kept in order")
            await self.usage.write()
