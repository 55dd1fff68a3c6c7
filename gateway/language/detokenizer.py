"""Detokenizers: an answer's token ids in, one by one; its text out as soon as it is certain.

`flush` ends the answer. Ids outside the vocabulary have no text, nor do special tokens unless they are asked for. Knows
nothing of stop strings or of why an answer ends.
"""

from codecs import utf_8_decode
from collections.abc import Collection, Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # stands for bytes that are no character, or an incomplete one

# A character has four bytes at most. If the text of more ids still ends in U+FFFD, they hold bad bytes or the character
# U+FFFD itself. The bound makes an answer full of them linear; DecodeStream waits for ever.
_MAX_PENDING = 8
_CONTEXT = 4  # prompt tokens that decide whether an answer's first token keeps its leading space


class Detokenizer(Protocol):
    """Turns ids into text. `whole`: texts that need no context; use it instead of `feed` while nothing is `pending`."""

    @property
    def whole(self) -> Mapping[int, str]: ...

    @property
    def pending(self) -> Sized: ...

    def feed(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """The text of byte-level tokens: `whole` characters, or bytes that are `parts` of some. Other ids have no text."""

    whole: Mapping[int, str]
    parts: Mapping[int, bytes]

    def spell(self, token_id: int) -> bytes:
        part = self.parts.get(token_id)
        return self.whole.get(token_id, "").encode() if part is None else part

    def with_tokens(self, tokens: Mapping[int, str]) -> "Spelling":
        """Returns a Spelling that shows these tokens as well."""
        return Spelling({**self.whole, **tokens}, self.parts)


class ByteDetokenizer:
    """A Detokenizer for byte-level BPE, whose tokens stand for the same bytes everywhere: exact and linear for any ids.

    DecodeStream is not used for three reasons: it never returns text that ends in U+FFFD, it is quadratic in a run of
    special tokens (58 us a token in a run of 4,000; ignore_eos makes such runs), and its pending ids cannot be read.
    """

    __slots__ = ("_spelling", "pending", "whole")

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self.whole = spelling.whole
        self.pending = b""

    def feed(self, token_id: int) -> str:
        unread = self.pending + self._spelling.spell(token_id)
        text, consumed = utf_8_decode(unread, "replace", False)
        self.pending = unread[consumed:]
        return text

    def flush(self) -> str:
        text, _ = utf_8_decode(self.pending, "replace", True)
        self.pending = b""
        return text


class WindowDetokenizer:
    """A Detokenizer for other tokenizers: decodes the pending ids after the ids shown last, and returns the new text.

    The ids shown last, at first the prompt's tail, are a context that keeps the leading space: SentencePiece drops it
    at the start of a text. The answer's text is the tokenizer's own, with one exception: if a run of byte tokens turns
    invalid, the characters already shown stay, where a decode of the whole run would turn them into U+FFFD as well.
    """

    __slots__ = ("_context", "_context_text", "_decode", "_showable", "pending", "whole")

    def __init__(self, tokenizer: Tokenizer, showable: Collection[int], prompt: Iterable[int]) -> None:
        """`showable`: the ids whose text is shown. `prompt`: the prompt's ids, the last one first."""
        self.whole: Mapping[int, str] = {}  # empty: a token's text depends on the tokens before it
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)  # only showable ids are ever decoded
        self._showable = showable
        self.pending: list[int] = []
        self._keep_context([*islice((i for i in prompt if i in showable), _CONTEXT)][::-1])

    def feed(self, token_id: int) -> str:
        if token_id not in self._showable:
            return ""
        self.pending.append(token_id)
        text = self._decode(self._context + self.pending)
        if text.endswith(REPLACEMENT) and len(self.pending) < _MAX_PENDING:
            return ""
        return self._extract_new(text)

    def flush(self) -> str:
        return self._extract_new(self._decode(self._context + self.pending)) if self.pending else ""

    def _extract_new(self, text: str) -> str:
        """Returns the part of `text` after the context's, and makes the pending ids the new context."""
        is_extension = text.startswith(self._context_text)
        new = text[len(self._context_text) :] if is_extension else self._decode(self.pending)
        self._keep_context(self.pending)
        self.pending = []
        return new

    def _keep_context(self, token_ids: list[int]) -> None:
        self._context = token_ids
        self._context_text = self._decode(token_ids)
