"""The token lane: the gateway speaks text with the client and token ids with the engine.

In: an Ask. Out: an answer, written into the reply by the engine's own calls. Knows no wire.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.api.answer import Answer, Put
from gateway.api.ask import Ask
from gateway.api.client import ClientLeft
from gateway.api.desk import Desk
from gateway.api.frames import Frames
from gateway.api.reply import UNBUFFERED, Reply
from gateway.core import FinishReason, Route, TokenBackend
from gateway.errors import BackendUnavailable, GatewayError
from gateway.language import ModelLanguage
from gateway.metrics import Metrics


@dataclass(frozen=True, slots=True)
class TokenLane:
    """A model whose backends all take token ids."""

    language: ModelLanguage
    backends: Mapping[str, TokenBackend]

    async def answer(self, ask: Ask, reply: Reply, desk: Desk) -> None:
        """Returns when the answer is complete. Raises ClientLeft, and GatewayError, which the client has yet to hear.

        A lease lasts as long as its attempt; there is one retry, elsewhere, while nothing of an answer exists.
        """
        request = ask.request
        avoid: frozenset[str] = frozenset()
        while not reply.outlet.has_left:
            with desk.router.lease(request, avoid) as lease:
                try:
                    await self._attempt(ask, lease.route, reply, desk.metrics)
                except GatewayError as error:
                    if error.is_down:
                        desk.router.mark_unavailable(lease.route.backend, request.model)
                    if avoid or request.pin is not None or not isinstance(error, BackendUnavailable):
                        raise
                    avoid = frozenset({lease.route.backend})
                else:
                    return
        raise ClientLeft

    async def _attempt(self, ask: Ask, route: Route, reply: Reply, metrics: Metrics) -> None:
        """Hold an engine call for as long as the answer lasts; leaving, for any reason, gives it up."""
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        reply.open(route, end.set_result)
        frames = ask.frames()
        sink = Answer(ask.decoder(), frames, len(ask.request.prompt), _Way(reply, frames))
        with metrics.observe(ask.request, route, sink, reply.arrived) as observation:
            call = self.backends[route.backend].start(ask.request, observation)
            try:
                if (error := await end) is not None:
                    if isinstance(error, GatewayError):
                        observation.end(error.code)
                    raise error
                observation.end(FinishReason.STOP)  # unless the engine has said how it ended, a stop string did
            finally:
                call.cancel()
                reply.close()


class _Way:
    """From an Answer to the reply; the head goes out with the first frames."""

    __slots__ = ("_is_stream", "_lines", "_reply")

    def __init__(self, reply: Reply, frames: Frames) -> None:
        self._reply = reply
        self._lines = (b"content-type: " + frames.content_type, *UNBUFFERED)
        self._is_stream = frames.is_stream

    def begin(self, frames: bytes) -> Put:
        reply = self._reply
        reply.begin(200, self._lines, None)
        reply.takes_events = self._is_stream
        reply.outlet.write(frames)
        return reply.outlet.write

    def close(self, frames: bytes) -> None:
        reply = self._reply
        if not reply.has_begun:
            reply.begin(200, self._lines, len(frames))
        reply.outlet.end(frames)
        reply.settle()

    def fail(self, error: GatewayError) -> None:
        self._reply.settle(error)
