"""Limits that the connections of one worker share while requests arrive: bytes of bodies, connections, log lines.

In: sizes and counts. Out: whether there is room. Knows no byte of a request.
"""

import asyncio
import logging
import resource
import time
from collections import OrderedDict

from gateway.settings import LimitSettings

logger = logging.getLogger(__name__)

# Of the descriptors a process may have: for itself (listener, shared map, engines' idle connections), and for
# connections beyond the usual number, so that a probe is answered also then.
OWN_DESCRIPTORS = 96
SPARE_CONNECTIONS = 32
MIN_CONNECTIONS = 8
LOG_INTERVAL_S = 60.0
MAX_ADDRESSES = 1024


class LogThrottle:
    """Admits one log line per key and interval; forgets the oldest key when there are more than it keeps."""

    def __init__(self, interval_s: float = LOG_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._last: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def admit(self, key: str) -> int | None:
        """Returns how many lines were dropped since the last one admitted; None: drop this one, too."""
        now = time.monotonic()
        then, dropped = self._last.get(key, (-self._interval_s, 0))
        if now - then < self._interval_s:
            self._last[key] = then, dropped + 1
            return None
        self._last[key] = now, 0
        self._last.move_to_end(key)
        if len(self._last) > MAX_ADDRESSES:
            self._last.popitem(last=False)
        return dropped


class Intake:
    """One worker's limits. `body_bytes`: how many bytes are held of bodies that have begun to arrive and are not whole.

    `max_connections`: by default what the limit on descriptors leaves, where each may need another for its engine.
    """

    def __init__(self, limits: LimitSettings, max_connections: int | None = None) -> None:
        self.limits = limits
        self.max_connections = max_connections or _count_connections()
        self.body_bytes = 0
        self._surplus: dict[asyncio.Transport, None] = {}
        self._throttle = LogThrottle()

    def __repr__(self) -> str:
        return f"<Intake {self.body_bytes} bytes of bodies>"

    def hold(self, size: int) -> bool:
        """Returns whether there is room for `size` more bytes; if so, they count until they are released."""
        if self.body_bytes + size > self.limits.max_bodies_bytes:
            return False
        self.body_bytes += size
        return True

    def release(self, size: int) -> None:
        self.body_bytes -= size

    def is_full(self, connections: int) -> bool:
        """Returns whether `connections` exceeds the limit. Those beyond it are refused; a probe is answered."""
        if connections <= self.max_connections:
            return False
        if self._throttle.admit("connections") is not None:
            logger.warning(
                "%d connections are open, as many as the limit on descriptors has room for: others are refused",
                self.max_connections,
            )
        return True

    def keep_surplus(self, transport: asyncio.Transport) -> None:
        """Keeps a connection beyond the limit. Closes the oldest of too many such: a probe is newer, and quick."""
        self._surplus[transport] = None
        if len(self._surplus) > SPARE_CONNECTIONS:
            oldest = next(iter(self._surplus))
            del self._surplus[oldest]
            oldest.abort()

    def lose_surplus(self, transport: asyncio.Transport) -> None:
        self._surplus.pop(transport, None)

    def note_bad_request(self, address: str) -> None:
        if (more := self._throttle.admit(address)) is not None:
            since = f", and {more} times since this was last reported" if more else ""
            logger.warning("%s sent something that is not HTTP%s", address or "a client", since)


def _count_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return max((soft - OWN_DESCRIPTORS - SPARE_CONNECTIONS) // 2, MIN_CONNECTIONS)
