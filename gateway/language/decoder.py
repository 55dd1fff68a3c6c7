"""TextDecoder. In: an answer's token ids. Out: the text that its client may see, and the count of tokens it used.

Joins a detokenizer and a stop matcher, and knows which ids end an answer. Knows no engine, no wire and no clock.
"""

from collections.abc import Sequence

from gateway.core import GenerateRequest
from gateway.language.detokenizer import Detokenizer
from gateway.language.stop_strings import StopMatcher


class TextDecoder:
    """Feed it every id of an answer, in pieces of any size, then `flush`.

    From the min_tokens-th token on, an end token (an eos unless `ignore_eos`, or one of `stop_token_ids`) ends the
    answer: the token counts and has no text. A stop string ends the answer if it ends in the text of a later token than
    the min_tokens-th, as in vLLM: the string and the text after it are dropped, and tokens after the one that completed
    it do not count. With `include_stop` the token or string that ended the answer is part of its text.
    """

    __slots__ = (
        "_detokenizer", "_end_ids", "_include_stop", "_is_over", "_matcher", "_min_tokens", "_whole",
        "completion_tokens", "stopped",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest, stop: Sequence[str], detokenizer: Detokenizer, *, include_stop: bool = False
    ) -> None:
        params = request.params
        self._end_ids = frozenset(params.stop_token_ids + (() if params.ignore_eos else request.eos_token_ids))
        self._min_tokens = params.min_tokens
        self._detokenizer = detokenizer
        self._whole = detokenizer.whole
        self._matcher = StopMatcher(stop, keeps_match=include_stop)
        self._include_stop = include_stop
        self._is_over = False
        self.completion_tokens = 0
        """How many ids were consumed, the one that ended the answer included."""
        self.stopped = False
        """Whether the answer ended before its engine did: a stop string matched, or ids arrived after an end token."""

    def find_stop(self) -> str | None:
        """Returns the stop string that ended the answer; None if none did."""
        return self._matcher.matched

    def feed(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these ids make certain; "" while characters or stop strings are incomplete."""
        if len(token_ids) == 1:
            token_id = token_ids[0]
            # Nearly every token is whole characters in which no stop string and no end begins. This case is handled
            # without further calls, since each would cost as much as the work done here.
            if not (self._detokenizer.pending or self._is_over) and token_id not in self._end_ids:
                text, matcher = self._whole.get(token_id), self._matcher
                if text is not None and not matcher.held and matcher.starts.isdisjoint(text):
                    self.completion_tokens += 1
                    return text
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """Returns the remaining text: U+FFFD for an incomplete character, and text held back for a stop string."""
        return self._match(self._detokenizer.flush()) + self._matcher.flush()

    def _feed_one(self, token_id: int) -> str:
        if self._is_over:
            self.stopped = True
            return ""
        self.completion_tokens += 1
        if token_id in self._end_ids and self.completion_tokens >= self._min_tokens:
            self._is_over = True
            if not self._include_stop:
                return ""
        text = self._detokenizer.feed(token_id)
        return self._match(text) if text else ""

    def _match(self, text: str) -> str:
        shown = self._matcher.feed(text, may_match=self.completion_tokens > self._min_tokens)
        if self._matcher.matched is not None:
            self._is_over = self.stopped = True
        return shown
