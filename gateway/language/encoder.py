"""Encoder: a text in, its token ids out. Segments between two separators that were encoded lately come from a cache.

A Draft stands between text and ids: it knows the cost of the encoding before the encoding starts, so that its owner can
choose a thread for it. Pure except for the cache; safe to call from any thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tokenizers import Tokenizer

from gateway.core import Prompt
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language.segment_cache import Ids, SegmentCache
from gateway.language.separator import Separator

CACHE_BYTES = 32 * 1024 * 1024

# More than a chat has turns. Each segment costs microseconds, some of them under the cache's lock, and a message may be
# full of special tokens' text.
MAX_SEGMENTS = 4096

# Of one text, or as many as the context holds if that is more: to make a list of 4,000,000 ids takes 70 ms, in which no
# other thread runs.
MAX_TOKENS = 1024 * 1024

# A part of a text: the ids of a cached segment, or consecutive segments that are not cached.
Stretch: TypeAlias = Ids | list[str]


@dataclass(frozen=True, slots=True)
class Draft:
    """A prompt whose text is final. `new_characters`: how many characters `encode` will encode, at about 0.5 us each.

    `param`: the client's name for the text.
    """

    new_characters: int
    param: str
    _encode: Callable[[], Sequence[int]]

    def find_ids(self) -> Sequence[int]:
        """Returns the text's ids. Raises InvalidRequest, also for a text of more tokens than the encoder's limit.

        Other threads can run meanwhile, except for some 10 ms with 100,000 tokens.
        """
        try:
            token_ids = self._encode()
        except TooManyTokens as exc:
            raise ContextLengthExceeded(f"{self.param}: {exc}", param=self.param) from exc
        except UnicodeError as exc:
            raise InvalidRequest(f"{self.param}: the text holds a lone surrogate.", param=self.param) from exc
        return token_ids

    def encode(self) -> Prompt:
        """Returns the prompt. Raises InvalidRequest as `find_ids` does, and for an empty prompt."""
        if not (token_ids := self.find_ids()):
            raise InvalidRequest(f"{self.param}: an empty prompt has nothing to continue.", param=self.param)
        return Prompt(tuple(token_ids))


class TooManyTokens(Exception):
    """The text has more tokens than the encoder's limit."""


class Encoder:
    def __init__(
        self,
        tokenizer: Tokenizer,
        separator: Separator | None,
        cache_bytes: int = CACHE_BYTES,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """Encodes every text as a whole if there is no separator."""
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._separator = separator
        self._cache = SegmentCache(cache_bytes)

    def __repr__(self) -> str:
        where = "nowhere" if self._separator is None else f"at {self._separator.text}"
        return f"<Encoder cuts {where}, {self._cache!r}>"

    def draft(self, text: str, param: str) -> Draft:
        """Returns the draft of a text that spells its special tokens itself, as a rendered chat does."""
        if self._separator is None or text.count(self._separator.text) >= MAX_SEGMENTS:
            return Draft(len(text), param, partial(self._encode_whole, text, add_special_tokens=False))
        stretches = _make_stretches(segments := text.split(self._separator.text), self._cache.find(segments))
        new_characters = sum(sum(map(len, stretch)) for stretch in stretches if isinstance(stretch, list))
        return Draft(new_characters, param, partial(self._encode_stretches, stretches, self._separator))

    def draft_framed(self, text: str, param: str) -> Draft:
        """Returns the draft of a bare text: the tokenizer adds the special tokens that it puts around a text."""
        return Draft(len(text), param, partial(self._encode_whole, text, add_special_tokens=True))

    def _encode_whole(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return self._encode([text], add_special_tokens=add_special_tokens)[0]

    def _encode_stretches(self, stretches: Sequence[Stretch], separator: Separator) -> Sequence[int]:
        # One text for each new stretch and not for each segment, because every text costs another 10 us.
        texts = [separator.text.join(stretch) for stretch in stretches if isinstance(stretch, list)]
        encoded = iter(self._encode(texts, add_special_tokens=False))
        token_ids: list[int] = []
        for stretch in stretches:
            if isinstance(stretch, list):
                new = next(encoded)
                self._cache_segments(stretch, new, separator)
                token_ids += new
            else:
                token_ids += stretch
            token_ids.append(separator.token_id)
        token_ids.pop()
        return token_ids

    def _cache_segments(self, segments: Sequence[str], token_ids: list[int], separator: Separator) -> None:
        """Cut `token_ids`, the ids of all `segments` together, and cache each segment's part."""
        if len(segments) == 1:
            self._cache.store(segments[0], token_ids)
            return
        # More ids than separators can occur: a normalizer or the merges may spell the separator from other text.
        if token_ids.count(separator.token_id) != len(segments) - 1:
            return
        start = 0
        for segment in segments:
            end = _find_next(token_ids, separator.token_id, start)
            self._cache.store(segment, token_ids[start:end])
            start = end + 1

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Returns each text's ids. Raises UnicodeError, TooManyTokens.

        Of tokenizers' calls only the batch call lets other threads run; it also computes no offsets.
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except TypeError as exc:  # tokenizers raises it for a string that is not Unicode text
            raise UnicodeError from exc
        if (count := sum(map(len, encodings))) > self._max_tokens:
            raise TooManyTokens(f"the text makes {count} tokens, which is more than {self._max_tokens}.")
        return [encoding.ids for encoding in encodings]


def _make_stretches(segments: Iterable[str], known: Iterable[Ids | None]) -> list[Stretch]:
    stretches: list[Stretch] = []
    for segment, token_ids in zip(segments, known, strict=True):
        last = stretches[-1] if stretches else None
        if token_ids is not None:
            stretches.append(token_ids)
        elif isinstance(last, list):
            last.append(segment)
        else:
            stretches.append([segment])
    return stretches


def _find_next(token_ids: list[int], token_id: int, start: int) -> int:
    """Returns the index of the next `token_id`, or the length of `token_ids` if there is none."""
    try:
        return token_ids.index(token_id, start)
    except ValueError:
        return len(token_ids)
