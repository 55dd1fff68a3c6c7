"""What the spine knows of a request: the kinds of work are behind these protocols.

Knows neither tokens nor relayed bytes (token_lane.py, relay_lane.py).
"""

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, TypeAlias, Union

from gateway.access import Ask
from gateway.core import Placeable, Route
from gateway.errors import GatewayError
from gateway.lengths import Survival
from gateway.routing import Extent
from gateway.serving.reply import Reply


class Attempt(Protocol):
    """One try at one backend. It writes into the reply, and calls the reply's `finish` or `fail` once, or moves."""

    def may_move(self, error: Exception) -> bool:
        """Whether the answer may go on elsewhere after this error: from where it is, or from its beginning, unseen."""
        ...

    def has_tokens(self, beyond: int = 0) -> bool:
        """Whether more than so many tokens of a sequence have come from this backend, where it is not complete."""
        ...

    def has_answered(self) -> bool:
        """Whether an answer that has ended without an error is one, and no refusal."""
        ...

    def measure(self, lengths: Survival) -> Extent:
        """Returns how much there is of the answer, and how much is to come by how long answers are."""
        ...

    def count(self) -> tuple[int, int]:
        """Returns the prompt's and the answer's tokens, as the client is told them. Call it before `end`."""
        ...

    def move(self, route: Route, error: Exception | None) -> None:
        """Leave the backend, because of an error or for no fault of its own, and go on at the route's.

        Raises GatewayError if the other backend does not even begin; call `end` all the same.
        """
        ...

    def end(self, error: Exception | None) -> None:
        """Leave the backend, and count how the attempt ended. The reply is not called any more."""
        ...

    def stop(self, error: GatewayError) -> None:
        """Have the reply's `fail` called with an error that is not the backend's."""
        ...

    def pause(self) -> None:
        """The client reads no more at the moment."""
        ...

    def resume(self) -> None: ...


class Work(Protocol):
    """One request that a backend has to answer. `barred`: the backends that it may not go to."""

    @property
    def request(self) -> Placeable: ...

    @property
    def barred(self) -> frozenset[str]: ...

    @property
    def ask(self) -> Ask:
        """What it may take of its key's limits."""
        ...

    def digest(self) -> int:
        """Returns 64 bits that are the same for each request with this content, whoever sends it."""
        ...

    def begin(self, route: Route, reply: Reply) -> Attempt:
        """Send it to the route's backend. Raises GatewayError if that cannot be done, and then holds nothing."""
        ...


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """The whole JSON answer to a request that needs no backend."""

    body: bytes


def make_digest(*parts: bytes) -> int:
    return int.from_bytes(blake2b(b"\n".join(parts), digest_size=8).digest(), "little", signed=True)


# A future: it takes time to understand the request, and its result is what is understood.
Understood: TypeAlias = Union[Work, LocalAnswer, "asyncio.Future[Understood]"]
