"""A gRPC call of one request and one response, awaited."""

import asyncio
from collections.abc import Sequence

from gateway.backends.rpc.call import Outcome, Status
from gateway.backends.rpc.h2_client import H2Client


class RpcError(Exception):
    """A call ended with another status than OK, or without exactly one response."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.status.name}: {outcome.detail}")
        self.outcome = outcome


async def unary(channel: H2Client, path: str, request: bytes) -> bytes:
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
