"""The relay lane: a request goes on as it came, to a backend that routing chose, and its answer comes back as it is.

Knows the `model` of a body and nothing else of it. From its place to its end a request is plain calls: a task of its
own would cost as much as all that is done for it here.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gateway.api.client import ClientLeft
from gateway.api.desk import Desk
from gateway.api.errand import await_end, say_nothing, start_again
from gateway.api.reply import OnEnd, Reply
from gateway.core import RelayBackend, RelayCall, RelayRequest
from gateway.errors import BackendUnavailable, GatewayError
from gateway.routing import Lease
from gateway.settings import AllowSettings

logger = logging.getLogger(__name__)

CANCELLED = "cancelled"
REFUSED = "refused"  # by the engine, with an answer of its own
FINISHED = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class RelayLane:
    """A model with a backend that only speaks OpenAI's API.

    `rules`: what of a body may go on to those that take one; without an entry, or with None, whatever is in it.
    """

    backends: Mapping[str, RelayBackend]
    rules: Mapping[str, AllowSettings | None] = field(default_factory=dict)

    async def answer(self, request: RelayRequest, reply: Reply, desk: Desk) -> None:
        """For a caller with a task. Returns when the answer is complete; raises what `Relaying` ends with."""
        await await_end(partial(Relaying, request, self, reply, desk))


class Relaying:
    """One request on its way; holds a lease and an engine call for as long as an attempt lasts.

    core.RelaySink of its call. `on_end` is told once: None when the answer is complete, else a GatewayError that the
    client has yet to hear of, or ClientLeft.
    """

    __slots__ = (
        "_avoid", "_backends", "_call", "_desk", "_lease", "_on_end", "_reply", "_request", "begin", "takes_chunks",
        "write",
    )  # fmt: skip

    def __init__(self, request: RelayRequest, lane: RelayLane, reply: Reply, desk: Desk, on_end: OnEnd) -> None:
        self._request = request
        self._backends = lane.backends
        self._desk = desk
        self._reply = reply
        self._on_end = on_end
        self._avoid: frozenset[str] = frozenset()
        self._lease: Lease
        self._call: RelayCall | None = None  # of the attempt under way
        self.begin = reply.begin
        self.write = reply.outlet.write
        self.takes_chunks = reply.outlet.takes_chunks

    def start(self) -> None:
        """Place the request and send it on."""
        reply, request = self._reply, self._request
        if reply.outlet.has_left:
            self._on_end(ClientLeft())
            return
        try:
            self._lease = lease = self._desk.router.lease(request, self._avoid | request.barred)
        except GatewayError as error:
            self._on_end(error)
            return
        route = lease.route
        reply.open(route, self._ended)
        try:
            self._call = call = self._backends[route.backend].relay(request, self)
            reply.source = call
        except BaseException:  # a fault of ours: no call will ever end that gives the place back
            reply.close()
            lease.close()
            raise
        if reply.is_held_up:  # by an answer before this one, which the client has yet to take
            call.pause()

    def cancel(self) -> None:
        """Give it up without another word to anyone."""
        self._on_end = say_nothing
        self._reply.settle(ClientLeft())

    # core.RelaySink

    def splice(self) -> Callable[[bytes], None]:
        return self._reply.outlet.splice()

    def lost(self) -> None:
        self._reply.outlet.lost()

    def finish(self, data: bytes = b"") -> None:
        self._reply.outlet.end(data)
        self._reply.settle()

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        self._reply.takes_events = may_append
        self._reply.settle(error)

    def _ended(self, error: Exception | None) -> None:
        """Give everything up; once, on another backend, try again while nothing of an answer exists."""
        call, desk, lease, reply = self._call, self._desk, self._lease, self._reply
        assert call is not None  # an attempt ends once
        self._call = None  # it has us as its sink: only the garbage collector would end that
        route, reply.source = lease.route, None
        call.cancel()
        # Counted before the place is given back: whoever sees that nothing is in flight finds every answer counted.
        try:
            desk.metrics.relayed(self._request, route, reply.arrived, call, _outcome(call, error))
        # Edge: the caller is an engine's connection. It goes on whatever becomes of a counter, and so does the client.
        except Exception:
            logger.exception("request %s could not be counted", reply.request_id)
        finally:
            lease.close()
        if error is None:
            self._on_end(None)
            return
        if isinstance(error, GatewayError) and error.is_down:
            desk.router.mark_unavailable(route.backend, self._request.model)
        if isinstance(error, BackendUnavailable) and not self._avoid and self._request.pin is None:
            self._avoid = frozenset({route.backend})
            start_again(self, self._reply, self._on_end)
        else:
            self._on_end(error)


def _outcome(call: RelayCall, error: Exception | None) -> str:
    if error is not None:
        return error.code if isinstance(error, GatewayError) else CANCELLED
    if call.status >= 400:
        return REFUSED
    reason = call.finish_reason
    return reason if reason in FINISHED else "stop"
