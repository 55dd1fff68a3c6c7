"""The token lane: the gateway speaks text with the client and token ids with the engine.

In: an Ask. Out: an answer, written into the reply by the engine's own calls. Knows no wire. From its place to its end
a request is plain calls: in a task of its own it would go on only when everything that has come with it is read.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gateway.api.answer import Answer, Put
from gateway.api.ask import Ask
from gateway.api.client import ClientLeft
from gateway.api.desk import Desk
from gateway.api.errand import await_end, say_nothing, start_again
from gateway.api.pulse import Pulse
from gateway.api.relay_lane import RelayLane
from gateway.api.reply import UNBUFFERED, OnEnd, Reply
from gateway.core import Call, FinishReason, Route, TokenBackend
from gateway.errors import BackendUnavailable, GatewayError, NeedRefused
from gateway.language import ModelLanguage
from gateway.metrics import CANCELLED, Metrics, Observation
from gateway.routing import Lease

logger = logging.getLogger(__name__)

ALIVE = b": keep-alive\n\n"  # a comment, which clients of event streams skip


@dataclass(frozen=True, slots=True)
class TokenLane:
    """A model whose backends take token ids. `relay` has those that take a client's own body, on `relay_paths` too."""

    language: ModelLanguage
    backends: Mapping[str, TokenBackend]
    relay: RelayLane
    relay_paths: frozenset[str] = frozenset()
    reasoning_field: str = "reasoning"

    @property
    def relayed_only(self) -> frozenset[str]:
        """Backends that take no token ids."""
        return frozenset(self.relay.backends.keys() - self.backends.keys())

    async def answer(self, ask: Ask, reply: Reply, desk: Desk) -> None:
        """For a caller with a task. Returns when the answer is complete; raises what `Generating` ends with."""
        await await_end(partial(Generating, ask, self, reply, desk))


class Generating:
    """One ask on its way; holds a lease, and an engine call for each choice, for as long as an attempt lasts.

    There is one retry, elsewhere, while nothing of an answer exists. `on_end` is told once: None when the answer is
    complete, else a GatewayError that the client has yet to hear of, or ClientLeft.
    """

    __slots__ = ("_ask", "_attempt", "_avoid", "_desk", "_lane", "_lease", "_on_end", "_reply")

    def __init__(self, ask: Ask, lane: TokenLane, reply: Reply, desk: Desk, on_end: OnEnd) -> None:
        self._ask = ask
        self._lane = lane
        self._reply = reply
        self._desk = desk
        self._on_end = on_end
        self._avoid: frozenset[str] = frozenset()
        self._lease: Lease
        self._attempt: _Attempt

    def start(self) -> None:
        """Place the request and send it on."""
        reply = self._reply
        if reply.outlet.has_left:
            self._on_end(ClientLeft())
            return
        try:
            self._lease = lease = self._desk.router.lease(self._ask.request, self._avoid | self._lane.relayed_only)
        except GatewayError as error:
            self._on_end(error)
            return
        route = lease.route
        reply.open(route, self._ended)
        self._attempt = attempt = _Attempt(self._ask, self._lane.backends[route.backend], reply)
        try:
            attempt.start(route, self._desk)
        except GatewayError as error:
            reply.settle(error)
        except BaseException:  # a fault of ours: no call will ever end that gives the place back
            reply.close()
            attempt.end(CANCELLED)
            lease.close()
            raise

    def cancel(self) -> None:
        """Give it up without another word to anyone."""
        self._on_end = say_nothing
        self._reply.settle(ClientLeft())

    def _ended(self, error: Exception | None) -> None:
        """Give everything up; once, on another backend, try again while nothing of an answer exists."""
        lease, request = self._lease, self._ask.request
        # Counted before the place is given back: whoever sees that nothing is in flight finds every answer counted.
        try:
            self._attempt.end(_outcome(error))
        # Edge: as on the relay lane.
        except Exception:
            logger.exception("request %s could not be counted", self._reply.request_id)
        finally:
            lease.close()
        if error is None:
            self._on_end(None)
            return
        if isinstance(error, GatewayError) and error.is_down:
            self._desk.router.mark_unavailable(lease.route.backend, request.model)
        may_retry = not (self._reply.has_begun or self._avoid or request.pin)
        if may_retry and isinstance(error, BackendUnavailable | NeedRefused):
            self._avoid = frozenset({lease.route.backend})
            start_again(self, self._reply, self._on_end)
        else:
            self._on_end(error)


def _outcome(error: Exception | None) -> str:
    if error is None:
        return FinishReason.STOP  # where no engine has said how it ended, a stop string did
    return error.code if isinstance(error, GatewayError) else CANCELLED


class _Attempt:
    """Every choice of an ask on one backend, and what they share on the way to the reply."""

    def __init__(self, ask: Ask, backend: TokenBackend, reply: Reply) -> None:
        self._ask = ask
        self._backend = backend
        self._reply = reply
        self._left = len(ask.requests)
        self._commits = False  # whether a comment may be an answer's first bytes
        self._gathering = ask.gathering()
        self._running: list[tuple[Observation, Call]] = []
        self._pulse: Pulse | None = None

    def start(self, route: Route, desk: Desk) -> None:
        """Raises GatewayError when the backend does not even begin; `end` it all the same."""
        for index in range(self._left):
            self._start(index, route, desk.metrics)
        # Comments for a stream while its engine is silent, where the operator wants them.
        streams = desk.streams
        if streams.keep_alive_s is not None and self._ask.form.stream:
            self._commits = streams.keep_alive_commits
            self._pulse = Pulse(streams.keep_alive_s, self._heard, desk.metrics.clock, self._say_alive)
            self._pulse.start()

    def end(self, outcome: str) -> None:
        """Leave the engine, which may not know that this is over."""
        if self._pulse is not None:
            self._pulse.stop()
        for observation, call in self._running:
            observation.end(outcome)
            call.cancel()
        self._running.clear()  # they know us: only the garbage collector would end that

    def close(self, index: int, frames: bytes) -> None:
        """This choice is complete with these, and its engine may not know: a stop string is matched here."""
        self._left -= 1
        reply = self._reply
        if not self._left:
            if not reply.has_begun:
                reply.begin(200, self._lines, len(frames))
            reply.outlet.end(frames)
            reply.settle()
            return
        if frames:
            self.begin(frames)
        observation, call = self._running[index]
        observation.end(FinishReason.STOP)
        call.cancel()

    def begin(self, frames: bytes) -> Put:
        """The head goes out with the first frames of whichever choice is the first."""
        reply = self._reply
        if not reply.has_begun:
            reply.begin(200, self._lines, None)
            reply.takes_events = self._ask.form.stream
        reply.outlet.write(frames)
        return reply.outlet.write

    def fail(self, error: GatewayError) -> None:
        self._reply.settle(error)

    def _heard(self) -> float:
        return max(observation.last for observation, _ in self._running)

    def _say_alive(self) -> None:
        if self._reply.has_begun or self._commits:
            self.begin(ALIVE)

    def _start(self, index: int, route: Route, metrics: Metrics) -> None:
        request, choice = self._ask.requests[index], self._ask.choice(index, self._gathering)
        self._lines = (b"content-type: " + choice.frames.content_type, *UNBUFFERED)
        answer = Answer(choice.decoder, choice.frames, _Way(self, index), choice.details)
        observation = metrics.observe(request, route, answer, self._reply.arrived)
        self._running.append((observation, self._backend.start(request, observation)))


class _Way:
    """From one choice's Answer to what it shares with the others."""

    __slots__ = ("_attempt", "_index", "begin", "fail")

    def __init__(self, attempt: _Attempt, index: int) -> None:
        self._attempt = attempt
        self._index = index
        self.begin = attempt.begin
        self.fail = attempt.fail

    def close(self, frames: bytes) -> None:
        self._attempt.close(self._index, frames)
