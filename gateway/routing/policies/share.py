"""A policy for trying one backend on real traffic: a fixed share of requests goes to it, the rest to the other.

In: a request's id and who is ready. Out: a route with its reason. Load plays no part.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from gateway.core import Load, Placeable, Route, State
from gateway.routing.policies.two_backends import TwoBackends
from gateway.settings import number


@dataclass(frozen=True, slots=True)
class Share(TwoBackends):
    """Sends to `low` the requests whose id falls into the first `share` of all hashes, to `high` the others.

    So every worker keeps the share by itself, and a request that is tried again gets the same choice. Ids are counted
    up: a checksum of them, such as CRC-32, comes in patterns; a cryptographic hash is as good as random.
    """

    kind: ClassVar[str] = "share"

    share: Annotated[float, number(0, 1, "Which part of all requests the low-load backend gets.")]

    def start(self, version: int, now: float, side: str | None = None) -> State:
        """Starts on the side of the backend that gets most requests; the side never changes."""
        return State(side=self.low if self.share > 0.5 else self.high, since=now, version=version)

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        digest = hashlib.blake2b(request.request_id.encode(), digest_size=8).digest()
        backend = self.low if int.from_bytes(digest) < self.share * 2**64 else self.high
        reason = f"share {self.low}={self.share:g}"
        if loads[backend].is_ready:
            return Route(backend, reason), state
        return Route(self.find_ready(loads), f"{reason} {backend}=unavailable"), state
