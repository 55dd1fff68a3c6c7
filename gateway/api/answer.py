"""One choice of an answer on the token lane: token ids in, frames out to whoever carries them to the client.

Plain calls from the engine's connection to the client's. Knows no HTTP.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gateway.api.details import Details
from gateway.api.errors import InternalError
from gateway.api.frames import Frames
from gateway.core import FinishReason, TokenLogprob
from gateway.errors import GatewayError

logger = logging.getLogger(__name__)

Put: TypeAlias = Callable[[bytes], None]

OUR_FAULT = "The gateway failed to decode the answer."


class Decoder(Protocol):
    """language.TextDecoder, or what stands before one."""

    @property
    def stopped(self) -> bool: ...
    @property
    def completion_tokens(self) -> int: ...

    def feed(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class NotingDecoder:
    """A pipe before a decoder: what it takes for tokens of the answer is noted in `details`.

    Ids after a stop string came with those before it, and are not part of the answer.
    """

    def __init__(self, decoder: Decoder, details: Details) -> None:
        self._decoder = decoder
        self._details = details

    @property
    def stopped(self) -> bool:
        return self._decoder.stopped

    @property
    def completion_tokens(self) -> int:
        return self._decoder.completion_tokens

    def feed(self, token_ids: Sequence[int]) -> str:
        before = self._decoder.completion_tokens
        text = self._decoder.feed(token_ids)
        self._details.show(token_ids[: self._decoder.completion_tokens - before])
        return text

    def flush(self) -> str:
        return self._decoder.flush()


class Way(Protocol):
    """Takes one choice's frames: `begin`, what that gives any number of times, then `close`; or `close` or `fail`."""

    def begin(self, frames: bytes) -> Put:
        """The first frames. What it gives takes those that follow, as near to the client as can be."""
        ...

    def close(self, frames: bytes) -> None:
        """The answer is complete with these."""
        ...

    def fail(self, error: GatewayError) -> None: ...


class Answer:
    """Sink: decodes and frames every token in the call that brings it, and ends the answer itself at a stop string.

    Tokens that come together leave in one call.
    """

    __slots__ = ("_decoder", "_details", "_frames", "_is_open", "_is_over", "_put", "_way")

    def __init__(self, decoder: Decoder, frames: Frames, way: Way, details: Details | None = None) -> None:
        """`details`: takes the log-probabilities, where some were asked for."""
        self._decoder = decoder
        self._details = details
        self._frames = frames
        self._way = way
        self._put: Put | None = None  # the way, once it has begun
        self._is_open = False
        self._is_over = False

    def tokens(self, token_ids: Sequence[int]) -> None:
        if self._is_over:  # a stop string has matched, the call is about to be cancelled
            return
        try:
            decoder = self._decoder
            frames = self._frames.text(decoder.feed(token_ids))
            if decoder.stopped or not self._is_open:
                frames = self._complete(frames, FinishReason.STOP if decoder.stopped else None)
        # Edge: the caller is a connection that carries other requests too, and a fault of ours must not end theirs.
        except Exception:
            logger.exception("an answer could not be decoded or framed")
            self.fail(InternalError(OUR_FAULT))
            return
        if frames and (put := self._put) is not None and not self._is_over:
            put(frames)
        else:
            self._begin_or_close(frames)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        if self._details is not None:
            self._details.score(entries)

    def finish(self, reason: FinishReason) -> None:
        if self._is_over:
            return
        try:
            frames = self._frames.text(self._decoder.flush())
            frames = self._complete(frames, FinishReason.STOP if self._decoder.stopped else reason)
        # Edge: as above.
        except Exception:
            logger.exception("an answer could not be decoded or framed")
            self.fail(InternalError(OUR_FAULT))
            return
        self._begin_or_close(frames)

    def fail(self, error: GatewayError) -> None:
        if not self._is_over:
            self._is_over = True
            self._way.fail(error)

    def _complete(self, frames: bytes, reason: FinishReason | None) -> bytes:
        """With what comes before the first text, and after the last if there is a reason."""
        if not self._is_open:
            self._is_open = True
            frames = self._frames.open() + frames
        if reason is not None:
            frames += self._frames.close(reason, self._decoder.completion_tokens)
            self._is_over = True
        return frames

    def _begin_or_close(self, frames: bytes) -> None:
        if self._is_over:
            self._way.close(frames)
        elif frames:
            self._put = self._way.begin(frames)
