"""A tokenizer's vocabulary: what each id shows, the detokenizer that fits it, and its bounds.

A `tokenizers.Tokenizer` comes in and is read once; knows nothing of requests or templates.
"""

import json
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from gateway.language.detokenizer import ByteDetokenizer, Detokenizer, Spelling, WindowDetokenizer


class Vocabulary:
    """`size`: one more than the highest id. `longest_token`: in characters, the most that one token can stand for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab()
        self.size = 1 + max(vocabulary.values())
        self.longest_token = max(map(len, vocabulary))
        self._tokenizer = tokenizer
        self._shown = _shown_tokens(tokenizer)
        self._spelling = _spelling_of(self._shown) if _is_byte_level(tokenizer) else None

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """A fresh one for an answer to `prompt`."""
        if self._spelling is not None:
            return ByteDetokenizer(self._spelling)
        return WindowDetokenizer(self._tokenizer, self._shown, reversed(prompt))


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
    except KeyError:  # an added token is plain text, and the decoder takes what it cannot map as such
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as characters: printable Latin-1 as itself, the rest from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(rest)}


def _shown_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Every id but the special ones', with its token."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return {token_id: token for token, token_id in tokenizer.get_vocab().items() if token not in special}


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return tokenizer.decoder is not None and json.loads(tokenizer.decoder.__getstate__())["type"] == "ByteLevel"
