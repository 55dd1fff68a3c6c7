"""The seam between an adapter and a gRPC client: a Channel starts calls, `unary` awaits the response of one."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.backends.rpc.call import Outcome, Receiver, Status, Stream


class Channel(Protocol):
    """The connections to one server, opened and reopened as needed. Belongs to one running event loop."""

    def start(self, path: str, request: bytes, receiver: Receiver) -> Stream:
        """Send one serialized request and half-close. `path`: /package.Service/Method."""
        ...

    def renew(self) -> None:
        """Begin new calls on fresh connections, after a call without an answer. Running calls stay on theirs."""
        ...

    async def aclose(self) -> None:
        """End every call with UNAVAILABLE and close every connection."""
        ...


class RpcError(Exception):
    """A call ended with another status than OK, or without exactly one response."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.status.name}: {outcome.detail}")
        self.outcome = outcome


async def unary(channel: Channel, path: str, request: bytes) -> bytes:
    """Returns the one response to one request. Raises RpcError."""
    single = _SingleResponse()
    stream = channel.start(path, request, single)
    try:
        return await single.response
    finally:
        stream.cancel()


class _SingleResponse:
    """A Receiver that puts the response into a future when the call has ended with OK."""

    def __init__(self) -> None:
        self.response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._messages: list[bytes] = []

    def receive(self, messages: Sequence[bytes]) -> None:
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
