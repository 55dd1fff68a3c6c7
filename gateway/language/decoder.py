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
    With `include_stop` the token or string that ended the answer is part of its text.
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
        """Ids consumed, the one that ended the answer included."""
        self.stopped = False
        """The answer is over before its engine is: a stop string matched, or ids came after an end token."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these ids make certain; "" while characters or stop strings are incomplete."""
        if len(token_ids) == 1:
            token_id = token_ids[0]
            # What nearly every token of an answer is: whole characters in which no stop string and no end begins. All
            # in one place, since each call more would cost as much as what is done here.
            if not (self._detokenizer.pending or self._is_over) and token_id not in self._end_ids:
                text, matcher = self._whole.get(token_id), self._matcher
                if text is not None and not matcher.held and matcher.starts.isdisjoint(text):
                    self.completion_tokens += 1
                    return text
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """What is left when no more ids come: U+FFFD for an incomplete character, and text held for a stop string."""
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
