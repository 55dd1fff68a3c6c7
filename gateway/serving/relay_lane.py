"""The relay lane: a request goes on as it came, to a backend that routing chose, and its answer comes back as it is.

Knows the `model` of a body and nothing else of it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from gateway.access import Ask
from gateway.core import RelayBackend, RelayCall, RelayRequest, Route
from gateway.errors import BackendTimeout, GatewayError
from gateway.lengths import Survival
from gateway.metrics import CANCELLED, Metrics
from gateway.routing import Extent
from gateway.serving.reply import Reply
from gateway.serving.work import make_digest
from gateway.settings import AllowSettings

REFUSED = "refused"  # by the engine, with an answer of its own
FINISHED = frozenset({"stop", "length"})
UNREACHABLE = {502, 504}  # from a proxy, whose engine may be at work on it all the same
BYTES = 4  # for each token, where no usage is known
# A whole answer has its first byte when it is complete. What kills an engine does so when it is read or begun, and a
# lost connection shows at once; while a suspect waits to be proven all others wait for it.
PROVEN_S = 5.0


@dataclass(frozen=True, slots=True)
class RelayLane:
    """A model with a backend that only speaks OpenAI's API.

    `rules`: by backend, what of a body may go on to it; for one without an entry, or with None, whatever is in it.
    """

    backends: Mapping[str, RelayBackend]
    rules: Mapping[str, AllowSettings | None] = field(default_factory=dict)


class RelayWork:
    """The work.Work of a request that goes on as it came. `answer_tokens`: at most, of each sequence; None: unknown."""

    __slots__ = ("_answer_tokens", "_backends", "_digest", "_metrics", "barred", "request")

    def __init__(
        self, request: RelayRequest, lane: RelayLane, metrics: Metrics, answer_tokens: int | None = None
    ) -> None:
        self.request = request
        self._answer_tokens = answer_tokens
        self.barred = request.barred
        self._backends = lane.backends
        self._metrics = metrics
        self._digest: int | None = None

    @property
    def ask(self) -> Ask:
        return Ask(self.request.sequences, self.request.prompt_tokens, self._answer_tokens)

    def digest(self) -> int:
        """Made once, and only where one is asked for: a suspect is looked up every 20 ms, most requests never."""
        if self._digest is None:
            self._digest = make_digest(self.request.path, self.request.body)
        return self._digest

    def begin(self, route: Route, reply: Reply) -> "RelayAttempt":
        return RelayAttempt(self.request, self._backends, route, reply, self._metrics)


class RelayAttempt:
    """The work.Attempt of one request at one backend, and the core.RelaySink of its call."""

    __slots__ = (
        "_alive_since", "_backends", "_call", "_metrics", "_reply", "_request", "_route", "_was_unreachable", "begin",
        "takes_chunks", "write",
    )  # fmt: skip

    def __init__(
        self, request: RelayRequest, backends: Mapping[str, RelayBackend], route: Route, reply: Reply, metrics: Metrics
    ) -> None:
        self._request = request
        self._backends = backends
        self._reply = reply
        self._metrics = metrics
        self.begin = reply.begin
        self.write = reply.exchange.write
        self.takes_chunks = reply.exchange.takes_chunks
        self._call: RelayCall | None = None
        self._was_unreachable = False
        self._start(route)

    def _start(self, route: Route) -> None:
        self._route = route
        self._alive_since = time.monotonic()  # inf once it has failed
        self._call = call = self._backends[route.backend].relay(self._request, self)
        self._metrics.relaying(self._request, route)
        if self._reply.paused_at is not None:
            call.pause()

    # work.Attempt

    def may_move(self, error: Exception) -> bool:
        """It may start again where nothing has been passed on; not if its server is only silent, and may be slow.

        A second proxy that cannot reach its server ends it.
        """
        is_again = self._was_unreachable and self._call is not None and self._call.status in UNREACHABLE
        return not (self._reply.has_begun or isinstance(error, BackendTimeout) or is_again)

    def has_tokens(self, beyond: int = 0) -> bool:
        """Also while its engine has lived with it for PROVEN_S. What has begun does not go on, so none are counted."""
        if (call := self._call) is None:
            return False
        return call.first is not None or time.monotonic() - self._alive_since >= PROVEN_S

    def has_answered(self) -> bool:
        return self._call is not None and self._call.status < 400

    def measure(self, lengths: Survival) -> Extent:
        return Extent()

    def count(self) -> tuple[int, int]:
        """Where no usage is known the bytes of the prompt and of a whole answer count, a stream by its events."""
        if (call := self._call) is None or call.status >= 400 or (self._alive_since == inf and call.first is None):
            return 0, 0
        used = call.usage
        return used if any(used) else (len(self._request.body) // BYTES, call.size // BYTES or call.events)

    def move(self, route: Route, error: Exception | None) -> None:
        self._was_unreachable |= self._call is not None and self._call.status in UNREACHABLE
        self.end(error)
        self._reply.start(route)
        self._start(route)

    def end(self, error: Exception | None) -> None:
        if (call := self._call) is not None:
            self._call = None  # it has us as its sink: only the garbage collector would free the two
            call.cancel()
            self._metrics.relayed(self._request, self._route, self._reply.arrived, call, _outcome(call, error))

    def stop(self, error: GatewayError) -> None:
        assert self._call is not None  # here and below: who ended an attempt does not hold it any more
        self._call.fail(error)  # which knows whether an error event may follow

    def pause(self) -> None:
        assert self._call is not None
        self._call.pause()

    def resume(self) -> None:
        assert self._call is not None
        self._call.resume()

    # core.RelaySink

    def splice(self) -> Callable[[bytes], None]:
        return self._reply.exchange.splice()

    def write_failed(self) -> None:
        self._reply.exchange.lost()

    def finish(self, data: bytes = b"") -> None:
        self._reply.finish(data)

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        self._alive_since = inf
        if may_append:
            self._reply.error_event = self._reply.errors.event
        self._reply.fail(error)


def _outcome(call: RelayCall, error: Exception | None) -> str:
    if error is not None:
        return error.code if isinstance(error, GatewayError) else CANCELLED
    if call.status >= 400:
        return REFUSED
    reason = call.finish_reason
    return reason if reason in FINISHED else "stop"
