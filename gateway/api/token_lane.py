"""The token lane: the gateway speaks text with the client and token ids with the engine.

In: an Ask. Out: an answer, written into the reply by the engine's own calls. Knows no wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.api.answer import Answer
from gateway.api.ask import Ask
from gateway.api.frames import Frames
from gateway.api.reply import UNBUFFERED, Reply
from gateway.core import FinishReason, GenerateRequest, Route, TokenBackend
from gateway.errors import GatewayError
from gateway.language import ModelLanguage
from gateway.metrics import Metrics


@dataclass(frozen=True, slots=True)
class TokenLane:
    """A model whose backends all take token ids."""

    language: ModelLanguage
    backends: Mapping[str, TokenBackend]


@dataclass(slots=True)
class TokenWork:
    """One generation to be answered."""

    request: GenerateRequest
    ask: Ask
    lane: TokenLane

    async def attempt(self, route: Route, reply: Reply, metrics: Metrics) -> None:
        ask = self.ask
        frames = ask.frames()
        sink = Answer(ask.decoder(), frames, len(self.request.prompt), _Way(reply, frames))
        with metrics.observe(self.request, route, sink, reply.arrived) as observation:
            call = self.lane.backends[route.backend].start(self.request, observation)
            try:
                if (error := await reply.end) is not None:
                    if isinstance(error, GatewayError):
                        observation.end(error.code)
                    raise error
                observation.end(FinishReason.STOP)  # unless the engine has said how it ended, a stop string did
            finally:
                call.cancel()


class _Way:
    """From an Answer to the reply; the head goes out with the first frames."""

    __slots__ = ("_fields", "_is_stream", "_reply")

    def __init__(self, reply: Reply, frames: Frames) -> None:
        self._reply = reply
        self._fields = ((b"content-type", frames.content_type), *UNBUFFERED)
        self._is_stream = frames.is_stream

    def put(self, frames: bytes) -> None:
        reply = self._reply
        if not reply.has_begun:
            reply.begin(200, self._fields, None)
            reply.takes_events = self._is_stream
        reply.outlet.write(frames)

    def close(self, frames: bytes) -> None:
        reply = self._reply
        if not reply.has_begun:
            reply.begin(200, self._fields, len(frames))
        reply.outlet.end(frames)
        reply.settle()

    def fail(self, error: GatewayError) -> None:
        self._reply.settle(error)
