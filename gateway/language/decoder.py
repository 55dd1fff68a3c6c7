"""TextDecoder: one answer's token ids in, the text its client may see out, and the count of tokens it used.

Joins a detokenizer and a stop matcher, and knows which ids end an answer. Knows no engine, no wire and no clock.
"""

from collections.abc import Sequence

from gateway.core import GenerateRequest
from gateway.language.detokenizer import Detokenizer
from gateway.language.stop_strings import StopMatcher


class TextDecoder:
    """Feed it every id of an answer, in pieces of any size, then `flush`.

    From the min_tokens-th token on, an end token (an eos unless `ignore_eos`, or one of `stop_token_ids`) ends the
    answer: it counts and shows nothing. A stop string does when it ends in the text of a later token than that, as in
    vLLM: it and what follows it is not shown, and tokens after the one that completed it do not count.
    """

    __slots__ = ("_detokenizer", "_end_ids", "_is_over", "_matcher", "_min_tokens", "completion_tokens", "stopped")

    def __init__(self, request: GenerateRequest, stop: Sequence[str], detokenizer: Detokenizer) -> None:
        params = request.params
        self._end_ids = frozenset(params.stop_token_ids + (() if params.ignore_eos else request.eos_token_ids))
        self._min_tokens = params.min_tokens
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop) if stop else None
        self._is_over = False
        self.completion_tokens = 0
        """Ids consumed, the one that ended the answer included."""
        self.stopped = False
        """The answer is over before its engine is: a stop string matched, or ids came after an end token."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these ids make certain; "" while characters or stop strings are incomplete."""
        if len(token_ids) == 1:
            return self._feed_one(token_ids[0])
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """What is left when no more ids come: U+FFFD for an incomplete character, and text held for a stop string."""
        text = self._detokenizer.flush()
        return text if self._matcher is None else self._match(self._matcher, text) + self._matcher.flush()

    def _feed_one(self, token_id: int) -> str:
        if self._is_over:
            self.stopped = True
            return ""
        self.completion_tokens += 1
        if token_id in self._end_ids and self.completion_tokens >= self._min_tokens:
            self._is_over = True
            return ""
        text = self._detokenizer.feed(token_id)
        if self._matcher is None or not text:
            return text
        return self._match(self._matcher, text)

    def _match(self, matcher: StopMatcher, text: str) -> str:
        shown = matcher.feed(text, may_match=self.completion_tokens > self._min_tokens)
        if matcher.matched is not None:
            self._is_over = self.stopped = True
        return shown
