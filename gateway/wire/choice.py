"""One choice of an answer on the token lane: token ids in, frames out to whoever carries them to the client.

Plain calls from the engine's connection to the client's. Knows no HTTP.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gateway.core import FinishReason, TokenLogprob
from gateway.errors import GatewayError, InternalError
from gateway.wire.answer import Decoder, Frames
from gateway.wire.logprobs import Details

logger = logging.getLogger(__name__)

Write: TypeAlias = Callable[[bytes], None]


class NotingDecoder:
    """A pipe before a decoder: the tokens that the decoder counts as the answer's are noted in `details`.

    Ids after a stop string arrived with those before it, and are not part of the answer.
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


class ChoiceOutput(Protocol):
    """Takes one choice's frames: `begin`, the returned write any number of times, `finish`; or `finish` or `fail`."""

    def begin(self, frames: bytes) -> Write:
        """Takes the first frames. Returns a call that takes those that follow, as near to the client as can be."""
        ...

    def finish(self, frames: bytes) -> None:
        """Takes the last frames, with which the choice is complete."""
        ...

    def fail(self, error: GatewayError) -> None: ...


class Choice:
    """Decodes and frames tokens in the call that brings them, and ends the choice itself at a stop string.

    Its calls are those of a core.Sink but for `fail`. Tokens that come together leave in one call.
    """

    __slots__ = ("_decoder", "_details", "_frames", "_is_open", "_is_over", "_output", "_write")

    def __init__(self, decoder: Decoder, frames: Frames, output: ChoiceOutput, details: Details | None = None) -> None:
        """`details`: takes the log-probabilities, where the client asked for some."""
        self._decoder = decoder
        self._details = details
        self._frames = frames
        self._output = output
        self._write: Write | None = None  # once the output has begun
        self._is_open = False
        self._is_over = False

    def tokens(self, token_ids: Sequence[int]) -> None:
        if not self._is_over:  # else a stop string has matched, and the call is about to be cancelled
            self._advance(token_ids, None)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        if self._details is not None:
            self._details.score(entries)

    def drop_scores(self) -> None:
        """Drops the scores of tokens that did not come, because their engine was left in between."""
        if self._details is not None:
            self._details.drop_unshown()

    def finish(self, reason: FinishReason) -> None:
        if not self._is_over:
            self._advance((), reason)

    def _advance(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        """Decode and frame new tokens, or with a `reason` the rest of the text, and pass the frames on."""
        try:
            decoder = self._decoder
            frames = self._frames.text(decoder.feed(token_ids) if reason is None else decoder.flush())
            if decoder.stopped:
                reason = FinishReason.STOP
            if reason is not None or not self._is_open:
                frames = self._complete(frames, reason)
        # Edge: the caller is a connection that carries other requests too, and a fault of ours must not end those.
        except Exception:
            logger.exception("an answer could not be decoded or framed")
            self._is_over = True
            self._output.fail(InternalError("The gateway failed to decode the answer."))
            return
        if self._is_over:
            self._output.finish(frames)
        elif not frames:
            return
        elif self._write is not None:
            self._write(frames)
        else:
            self._write = self._output.begin(frames)

    def _complete(self, frames: bytes, reason: FinishReason | None) -> bytes:
        """Adds what comes before the first text, and with a `reason` what comes after the last."""
        if not self._is_open:
            self._is_open = True
            frames = self._frames.open() + frames
        if reason is not None:
            frames += self._frames.close(reason, self._decoder.completion_tokens)
            self._is_over = True
        return frames
