"""The seam between an adapter and a gRPC client: start a call, hear its messages, and once how it ended."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.backends.rpc.status import Outcome, Status


class Receiver(Protocol):
    """Hears one call: `messages` any number of times, then `closed` once; nothing after `Stream.cancel`.

    Plain calls from the event loop, never from inside `Channel.start`. They must not raise.
    """

    def messages(self, messages: Sequence[bytes]) -> None:
        """Serialized responses, in order: all that one read brought, at least one."""
        ...

    def closed(self, outcome: Outcome) -> None: ...


class Stream(Protocol):
    """One call under way."""

    def cancel(self) -> None:
        """Tell the server to stop and let everything go; idempotent, and harmless after the end."""
        ...


class Channel(Protocol):
    """Every connection to one server; opens and reopens them by itself. For one running event loop."""

    def start(self, path: str, request: bytes, receiver: Receiver) -> Stream:
        """Send one serialized request and half-close. `path`: /package.Service/Method."""
        ...

    def renew(self) -> None:
        """Something does not answer: let new calls begin on fresh connections. Running calls stay where they are."""
        ...

    async def aclose(self) -> None:
        """End every call as UNAVAILABLE and close every connection."""
        ...


class RpcError(Exception):
    """A call ended in another status than OK, or its answer was none."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.status.name}: {outcome.detail}")
        self.outcome = outcome


async def unary(channel: Channel, path: str, request: bytes) -> bytes:
    """The one response to one request. RpcError when there is none."""
    single = _Single()
    stream = channel.start(path, request, single)
    try:
        return await single.response
    finally:
        stream.cancel()


class _Single:
    """Puts the response into a future once the call has ended well."""

    def __init__(self) -> None:
        self.response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._messages: list[bytes] = []

    def messages(self, messages: Sequence[bytes]) -> None:
        self._messages.extend(messages)

    def closed(self, outcome: Outcome) -> None:
        if self.response.done():
            return
        if outcome.status is Status.OK and len(self._messages) == 1:
            self.response.set_result(self._messages[0])
        elif outcome.status is Status.OK:
            self.response.set_exception(RpcError(Outcome(Status.INTERNAL, f"{len(self._messages)} responses")))
        else:
            self.response.set_exception(RpcError(outcome))
