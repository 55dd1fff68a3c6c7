"""The keys and the hosts of one gateway together, as the routes are handed them."""

from dataclasses import dataclass
from typing import Self

from gateway.access.hosts import OwnHosts
from gateway.access.key_file import KeyFile
from gateway.access.keyring import Keyring
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Access:
    """`open_metrics`: /metrics is for everyone, whatever keys there are."""

    keyring: Keyring
    hosts: OwnHosts
    open_metrics: bool

    @classmethod
    def open(cls, settings: Settings, *, audits: bool = True) -> Self:
        """Raises KeyFileUnreadable."""
        keyring = Keyring(settings.operator_key, KeyFile(settings.state_folder), audits=audits)
        return cls(keyring, OwnHosts(settings.listen_host, settings.allowed_hosts), settings.open_metrics)
