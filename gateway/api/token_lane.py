"""The token lane: the gateway speaks text with the client and token ids with the engine.

In: an Ask. Out: an answer, written into the reply by the engine's own calls. Knows no wire.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.api.answer import Answer, Put
from gateway.api.ask import Ask
from gateway.api.client import ClientLeft
from gateway.api.desk import Desk
from gateway.api.pulse import Pulse
from gateway.api.relay_lane import RelayLane
from gateway.api.reply import UNBUFFERED, Reply
from gateway.core import Call, FinishReason, Route, TokenBackend
from gateway.errors import BackendUnavailable, GatewayError
from gateway.language import ModelLanguage
from gateway.metrics import CANCELLED, Metrics, Observation

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
        """Returns when the answer is complete. Raises ClientLeft, and GatewayError, which the client has yet to hear.

        A lease lasts as long as its attempt; there is one retry, elsewhere, while nothing of an answer exists.
        """
        request, relayed_only = ask.request, self.relayed_only
        failed: frozenset[str] = frozenset()
        while not reply.outlet.has_left:
            with desk.router.lease(request, failed | relayed_only) as lease:
                try:
                    await self._attempt(ask, lease.route, reply, desk)
                except GatewayError as error:
                    if error.is_down:
                        desk.router.mark_unavailable(lease.route.backend, request.model)
                    if reply.has_begun or failed or request.pin or not isinstance(error, BackendUnavailable):
                        raise
                    failed = frozenset({lease.route.backend})
                else:
                    return
        raise ClientLeft

    async def _attempt(self, ask: Ask, route: Route, reply: Reply, desk: Desk) -> None:
        """Hold an engine call for each choice for as long as the answer lasts; leaving, for any reason, gives it up."""
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        reply.open(route, end.set_result)
        attempt = _Attempt(ask, self.backends[route.backend], reply)
        with attempt.running(route, desk.metrics), attempt.kept_alive(desk):
            try:
                if (error := await end) is not None:
                    raise error
            finally:
                reply.close()


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

    @contextmanager
    def running(self, route: Route, metrics: Metrics) -> Iterator[None]:
        outcome: str = CANCELLED
        try:
            for index in range(self._left):
                self._start(index, route, metrics)
            yield
            outcome = FinishReason.STOP  # where no engine has said how it ended, a stop string did
        except GatewayError as error:
            outcome = error.code
            raise
        finally:
            for observation, call in self._running:
                observation.end(outcome)
                call.cancel()
            self._running.clear()  # they know us: only the garbage collector would end that

    @contextmanager
    def kept_alive(self, desk: Desk) -> Iterator[None]:
        """Comments for a stream while its engine is silent, where the operator wants them."""
        streams = desk.streams
        if streams.keep_alive_s is None or not self._ask.form.stream:
            yield
            return
        self._commits = streams.keep_alive_commits
        pulse = Pulse(streams.keep_alive_s, self._heard, desk.metrics.clock, self._say_alive)
        with pulse.beating():
            yield

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
        self._commits = False  # a comment in this same turn of the loop would forbid another try
        self._reply.settle(error)

    def _heard(self) -> float:
        return max(observation.last for observation, _ in self._running)

    def _say_alive(self) -> None:
        # An end that brings no token may come in the same turn of the loop; after it this would be the next answer's.
        if self._left and (self._reply.has_begun or self._commits):
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
