"""The relay lane: a request goes on as it came, to a backend that routing chose, and its answer comes back as it is.

Knows the `model` of a body and nothing else of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.api.reply import Reply
from gateway.core import Fields, RelayBackend, RelayRequest, Route
from gateway.errors import GatewayError
from gateway.metrics import Metrics

CANCELLED = "cancelled"
FINISHED = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class RelayLane:
    """A model with a backend that only speaks OpenAI's API."""

    backends: Mapping[str, RelayBackend]


@dataclass(frozen=True, slots=True)
class RelayWork:
    """One request to be passed on."""

    request: RelayRequest
    lane: RelayLane

    async def attempt(self, route: Route, reply: Reply, metrics: Metrics) -> None:
        """Hold an engine call for as long as the answer lasts; leaving, for any reason, gives it up."""
        sink = _Sink(reply)
        call = reply.source = self.lane.backends[route.backend].relay(self.request, sink)
        outcome = CANCELLED
        try:
            await reply.end()
            outcome = "stop" if call.status < 400 else "refused"
            if (reason := call.finish_reason) in FINISHED:
                outcome = reason
        except GatewayError as error:
            outcome = error.code
            raise
        finally:
            call.cancel()
            reply.source = None
            metrics.relayed(self.request, route, reply.arrived, call, outcome)


class _Sink:
    """core.RelaySink: into the reply, and `write` straight into its outlet."""

    __slots__ = ("_reply", "lost", "splice", "takes_chunks", "write")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        outlet = reply.outlet
        self.takes_chunks = outlet.takes_chunks
        self.write, self.splice, self.lost = outlet.write, outlet.splice, outlet.lost

    def begin(self, status: int, fields: Fields, length: int | None, *, is_framed: bool) -> None:
        self._reply.begin(status, fields, length, is_framed=is_framed)

    def finish(self) -> None:
        self._reply.outlet.end()
        self._reply.settle()

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        self._reply.takes_events = may_append
        self._reply.settle(error)
