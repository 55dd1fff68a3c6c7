"""One attempt at an answer: token ids in, frames out, waiting for the client in an outbox.

Plain calls from the engine's side, one `take` on the client's; a task wakes once for many tokens. Knows no HTTP.
"""

import asyncio
import logging
from collections.abc import Sequence

from gateway.api.errors import InternalError
from gateway.api.frames import Frames, Usage
from gateway.core import FinishReason
from gateway.errors import GatewayError
from gateway.language import TextDecoder

logger = logging.getLogger(__name__)


class Outbox:
    """Frames that wait for the client. Bounded by the answer itself: nothing is put that max_tokens does not allow."""

    def __init__(self) -> None:
        self.is_closed = False
        self._frames: list[bytes] = []
        self._error: GatewayError | None = None
        self._changed = asyncio.Event()

    def put(self, frame: bytes) -> None:
        if frame:
            self._frames.append(frame)
            self._changed.set()

    def close(self, error: GatewayError | None = None) -> None:
        """No frame is put after this; the first close counts."""
        if self.is_closed:
            return
        self.is_closed = True
        self._error = error
        self._changed.set()

    async def take(self) -> tuple[bytes, bool]:
        """All frames put since the last call, and whether they are the last. Raises the error once none is left."""
        await self._changed.wait()
        frames = b"".join(self._frames)
        self._frames.clear()
        if self._error is not None and not frames:
            raise self._error
        if not self.is_closed:
            self._changed.clear()
        return frames, self.is_closed and self._error is None


class Answer:
    """Sink: decodes and frames every token in the call that brings it, and ends the answer itself at a stop string."""

    def __init__(self, decoder: TextDecoder, frames: Frames, prompt_tokens: int, outbox: Outbox) -> None:
        self._decoder = decoder
        self._frames = frames
        self._prompt_tokens = prompt_tokens
        self._outbox = outbox
        self._is_open = False

    def tokens(self, token_ids: Sequence[int]) -> None:
        self._advance(token_ids, None)

    def finish(self, reason: FinishReason) -> None:
        self._advance((), reason)

    def fail(self, error: GatewayError) -> None:
        self._outbox.close(error)

    def _advance(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        if self._outbox.is_closed:  # a stop string has matched, the call is about to be cancelled
            return
        try:
            self._write(self._decoder.flush() if reason else self._decoder.feed(token_ids))
            if self._decoder.stopped:
                self._end(FinishReason.STOP)
            elif reason:
                self._end(reason)
        # Edge: the caller is a connection that carries other requests too, and a fault of ours must not end theirs.
        except Exception:
            logger.exception("an answer could not be decoded or framed")
            self.fail(InternalError("The gateway failed to decode the answer."))

    def _write(self, text: str) -> None:
        if not self._is_open:
            self._is_open = True
            self._outbox.put(self._frames.open())
        self._outbox.put(self._frames.text(text))

    def _end(self, reason: FinishReason) -> None:
        usage = Usage(self._prompt_tokens, self._decoder.completion_tokens)
        self._outbox.put(self._frames.close(reason, usage))
        self._outbox.close()
