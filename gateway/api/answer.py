"""One attempt at an answer on the token lane: token ids in, frames out to whoever carries them to the client.

Plain calls from the engine's connection to the client's. Knows no HTTP.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from gateway.api.errors import InternalError
from gateway.api.frames import Frames, Usage
from gateway.core import FinishReason
from gateway.errors import GatewayError
from gateway.language import TextDecoder

logger = logging.getLogger(__name__)


class Way(Protocol):
    """Takes an answer's frames: `put` any number of times, then `close` or `fail` once."""

    def put(self, frames: bytes) -> None: ...

    def close(self, frames: bytes) -> None:
        """The answer is complete with these."""
        ...

    def fail(self, error: GatewayError) -> None: ...


class Answer:
    """Sink: decodes and frames every token in the call that brings it, and ends the answer itself at a stop string.

    Tokens that come together leave in one `put`.
    """

    __slots__ = ("_decoder", "_frames", "_is_open", "_is_over", "_prompt_tokens", "_way")

    def __init__(self, decoder: TextDecoder, frames: Frames, prompt_tokens: int, way: Way) -> None:
        self._decoder = decoder
        self._frames = frames
        self._prompt_tokens = prompt_tokens
        self._way = way
        self._is_open = False
        self._is_over = False

    def tokens(self, token_ids: Sequence[int]) -> None:
        self._advance(token_ids, None)

    def finish(self, reason: FinishReason) -> None:
        self._advance((), reason)

    def fail(self, error: GatewayError) -> None:
        if not self._is_over:
            self._is_over = True
            self._way.fail(error)

    def _advance(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        if self._is_over:  # a stop string has matched, the call is about to be cancelled
            return
        try:
            frames = self._frame(self._decoder.flush() if reason else self._decoder.feed(token_ids))
            if self._decoder.stopped:
                reason = FinishReason.STOP
            if reason is not None:
                self._is_over = True
                frames += self._frames.close(reason, Usage(self._prompt_tokens, self._decoder.completion_tokens))
        # Edge: the caller is a connection that carries other requests too, and a fault of ours must not end theirs.
        except Exception:
            logger.exception("an answer could not be decoded or framed")
            self._is_over = False
            self.fail(InternalError("The gateway failed to decode the answer."))
            return
        if self._is_over:
            self._way.close(frames)
        elif frames:
            self._way.put(frames)

    def _frame(self, text: str) -> bytes:
        if self._is_open:
            return self._frames.text(text)
        self._is_open = True
        return self._frames.open() + self._frames.text(text)
