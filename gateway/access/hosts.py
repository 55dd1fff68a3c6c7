"""Which hosts this gateway may be called by, and which pages may call it: a browser takes a page's name for its origin.

A page whose name is made to resolve to this machine (DNS rebinding) calls with its own name as host; any other page
sends its origin. In: header fields. Out: the error. Pure, but for the machine's own name.
"""

import socket
from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.errors import ForeignSite

ANY = "*"
DEFAULT_PORTS = {"http": 80, "https": 443}
KEPT_HOSTS = 256


class OwnHosts:
    """The gateway's names: addresses, localhost, the machine's own name, that of `listen` and `allowed`, or any."""

    def __init__(self, listen_host: str, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed) - {ANY}
        self._names = self._allowed | {"localhost", listen_host.lower(), socket.gethostname().lower()}
        self._is_any = ANY in allowed
        self._is_own = lru_cache(maxsize=KEPT_HOSTS)(self._find_own)

    def check(self, host: bytes, origin: bytes | None, pages: Collection[str] = ()) -> None:
        """Raises ForeignSite. `pages`: the origins that may call from elsewhere, "*" for all."""
        if not self._is_own(host):
            name = host.decode("latin-1")[:200]
            raise ForeignSite(
                f"The host {name!r} is not this gateway's; 'allowed_hosts' of its configuration adds one."
            )
        if origin is not None and ANY not in pages:
            page = origin.decode("latin-1").lower()
            if page not in pages and not self._is_same(page, host.decode("latin-1").lower()):
                raise ForeignSite(f"Pages of {page[:200]} may not call this.")

    def _find_own(self, host: bytes) -> bool:
        # Browsers always send a host.
        return self._is_any or not host or self._is_own_name(_split("http", host.decode("latin-1"))[0])

    def _is_own_name(self, name: str) -> bool:
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def _is_same(self, page: str, host: str) -> bool:
        """Whether a page comes from the host it calls, or from one that is named as the gateway's own."""
        scheme, mark, place = page.partition("://")
        name, port = _split(scheme, place)
        # A host that "*" alone lets in may be a page's that resolves to this gateway.
        is_own = self._is_own_name(name) and (name, port) == _split(scheme, host)
        return bool(mark) and (is_own or name in self._allowed)


def _split(scheme: str, place: str) -> tuple[str, int | None]:
    """Returns the name, without a dot at its end, and the port; no name where it is none."""
    try:
        parts = urlsplit(f"//{place}")
        return (parts.hostname or "").removesuffix("."), parts.port or DEFAULT_PORTS.get(scheme)
    except ValueError:
        return "", None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
