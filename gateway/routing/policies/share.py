"""A policy for trying one backend on real traffic: a fixed share of requests goes to it, the rest to the other.

In: a request's id and who is ready. Out: a route with its reason. Goes by no load.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core import Load, Placeable, Route, State
from gateway.settings import ShareSettings


@dataclass(frozen=True, slots=True)
class Share:
    """To `low` the requests whose id falls into the first `share` of all hashes; to `high` the others.

    So every worker keeps the share without a word to the others, and a request that is tried again is chosen for alike.
    Ids are counted up: a checksum of them comes in patterns, as with CRC-32, a cryptographic hash like drawn at random.
    """

    settings: ShareSettings

    def start(self, version: int, now: float, side: str | None = None) -> State:
        """The side is who gets most; it never changes."""
        most = self.settings.low if self.settings.share > 0.5 else self.settings.high
        return State(side=most, since=now, version=version)

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        settings = self.settings
        digest = hashlib.blake2b(request.request_id.encode(), digest_size=8).digest()
        is_in = int.from_bytes(digest) < settings.share * 2**64
        backend = settings.low if is_in else settings.high
        reason = f"share {settings.low}={settings.share:g}"
        if loads[backend].is_ready:
            return Route(backend, reason), state
        by_preference = (settings.low, settings.high, *loads)
        instead = next(name for name in by_preference if loads[name].is_ready)
        return Route(instead, f"{reason} {backend}=unavailable"), state
