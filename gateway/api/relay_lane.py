"""The relay lane: a request goes on as it came, to a backend that routing chose, and its answer comes back as it is.

Knows the `model` of a body and nothing else of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.api.reply import Reply
from gateway.core import RelayBackend, RelayCall, RelayRequest, Route
from gateway.errors import GatewayError
from gateway.metrics import Metrics

CANCELLED = "cancelled"
REFUSED = "refused"  # by the engine, with an answer of its own
FINISHED = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class RelayLane:
    """A model with a backend that only speaks OpenAI's API."""

    backends: Mapping[str, RelayBackend]


@dataclass(slots=True)
class RelayWork:
    """One request to be passed on."""

    request: RelayRequest
    lane: RelayLane

    async def attempt(self, route: Route, reply: Reply, metrics: Metrics) -> None:
        call = reply.source = self.lane.backends[route.backend].relay(self.request, _Sink(reply))
        outcome = CANCELLED
        try:
            if (error := await reply.end) is not None:
                if isinstance(error, GatewayError):
                    outcome = error.code
                raise error
            outcome = _outcome(call)
        finally:
            call.cancel()
            reply.source = None
            metrics.relayed(self.request, route, reply.arrived, call, outcome)


def _outcome(call: RelayCall) -> str:
    if call.status >= 400:
        return REFUSED
    reason = call.finish_reason
    return reason if reason in FINISHED else "stop"


class _Sink:
    """core.RelaySink: into the reply, and `write` straight into its outlet."""

    __slots__ = ("_outlet", "_reply", "begin", "takes_chunks", "write")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._outlet = outlet = reply.outlet
        self.takes_chunks = outlet.takes_chunks
        self.begin, self.write = reply.begin, outlet.write

    def splice(self) -> Callable[[bytes], None]:
        return self._outlet.splice()

    def lost(self) -> None:
        self._outlet.lost()

    def finish(self) -> None:
        self._outlet.end()
        self._reply.settle()

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        self._reply.takes_events = may_append
        self._reply.settle(error)
