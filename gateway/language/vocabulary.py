"""A tokenizer's vocabulary: the text of each id, the detokenizer that fits the tokenizer, and the vocabulary's bounds.

A `tokenizers.Tokenizer` comes in and is read once. Knows nothing of requests or templates.
"""

import json
import re
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence

from tokenizers import Tokenizer

from gateway.language.detokenizer import ByteDetokenizer, Detokenizer, Spelling, WindowDetokenizer

BRACKETED = re.compile("<.+>", re.DOTALL)
NO_IDS: frozenset[int] = frozenset()

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's fallback for text that no piece covers


class Vocabulary:
    """A tokenizer's vocabulary. `special`: the special tokens by their ids; an answer does not show them.

    `size`: one more than the highest id. `longest_token`: the most characters that one token can stand for. `own`: the
    texts of tokens that no text is to be cut into, as llguidance knows them: special ones, and added ones in brackets.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab()
        self.size = 1 + max(vocabulary.values())
        self.longest_token = max(map(len, vocabulary))
        self.special = _special_tokens(tokenizer)
        added = tokenizer.get_added_tokens_decoder().values()
        self.own = tuple(token.content for token in added if token.special or BRACKETED.fullmatch(token.content))
        self._tokenizer = tokenizer
        self._shown = {token_id: token for token, token_id in vocabulary.items() if token_id not in self.special}
        self._spelling = _spelling_of(self._shown) if _is_byte_level(tokenizer) else None
        self._spellings: dict[frozenset[int], Spelling] = {}
        self._continuing: dict[int, bytes] = {}

    def detokenizer(self, prompt: Sequence[int], also_shown: frozenset[int] = NO_IDS) -> Detokenizer:
        """Returns a new detokenizer for an answer to `prompt`. `also_shown`: special tokens that the answer shows."""
        if self._spelling is not None:
            return ByteDetokenizer(self._spell_also(self._spelling, also_shown) if also_shown else self._spelling)
        shown = ChainMap(self._shown, dict.fromkeys(also_shown, "")) if also_shown else self._shown
        return WindowDetokenizer(self._tokenizer, shown, reversed(prompt))

    def find_special(self, contents: Collection[str]) -> frozenset[int]:
        """Returns the ids of the special tokens among `contents`."""
        return frozenset(token_id for token_id, content in self.special.items() if content in contents)

    def spell(self, token_id: int) -> bytes:
        """Returns the bytes that one token stands for wherever it occurs; b"" for an id outside the vocabulary."""
        if (special := self.special.get(token_id)) is not None:
            return special.encode()
        if self._spelling is not None:
            return self._spelling.spell(token_id)
        spelt = self._continuing.get(token_id)
        if spelt is None and (token := self._shown.get(token_id)) is not None:
            byte = _BYTE_TOKEN.fullmatch(token)
            spelt = bytes([int(byte[1], 16)]) if byte else self._continue(token_id).encode()
            self._continuing[token_id] = spelt
        return spelt or b""

    def _continue(self, token_id: int) -> str:
        """Returns the token's text after another token: at the start of a text some tokenizers drop its space."""
        before: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        both: str = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return both[len(before) :] if both.startswith(before) else before

    def _spell_also(self, spelling: Spelling, also_shown: frozenset[int]) -> Spelling:
        """Keeps a Spelling for each set of tokens: there are few sets, and 128,000 tokens take milliseconds."""
        found = self._spellings.get(also_shown)
        if found is None:
            found = spelling.with_tokens({token_id: self.special[token_id] for token_id in also_shown})
            self._spellings[also_shown] = found
        return found


def _spelling_of(tokens: Mapping[int, str]) -> Spelling:
    alphabet = _byte_alphabet()
    whole: dict[int, str] = {}
    parts: dict[int, bytes] = {}
    for token_id, token in tokens.items():
        spelt = _spell(token, alphabet)
        try:
            whole[token_id] = spelt.decode()
        except UnicodeDecodeError:
            parts[token_id] = spelt
    return Spelling(whole, parts)


def _spell(token: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:  # an added token is plain text, and so the decoder takes characters that it cannot map
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's bytes as characters: printable Latin-1 as itself, the rest from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(rest)}


def _special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Compares contents: any id of the vocabulary whose token is spelt like a special one counts as special."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return {token_id: token for token, token_id in tokenizer.get_vocab().items() if token in special}


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return tokenizer.decoder is not None and json.loads(tokenizer.decoder.__getstate__())["type"] == "ByteLevel"
