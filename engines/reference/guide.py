"""Guided decoding: a mask over the next token, by the grammar that an answer's text must match.

In: a Guide, and the model directory's tokenizer. Out: a Walk through its grammar. Knows no request and no sampling. The
library is llguidance, called as vLLM's `guidance` backend calls it (v1/structured_output/backend_guidance.py).
"""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from llguidance import LLMatcher, LLTokenizer, grammar_from
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer

from engines.reference.checkpoint import Floats

GuideKind: TypeAlias = Literal["json", "json_schema", "regex", "ebnf_grammar", "choice"]
KINDS: tuple[GuideKind, ...] = get_args(GuideKind)
MAX_GRAMMARS = 64  # compiled; clients send few schemas many times, and wire and engine both need each


@dataclass(frozen=True)
class Guide:
    """`text`: a JSON schema, a regular expression, a grammar (GBNF or Lark), a JSON list of choices; none for json."""

    kind: GuideKind
    text: str = ""


class Walk:
    """One answer's way through a grammar."""

    def __init__(self, matcher: LLMatcher, end_id: int, vocab_size: int) -> None:
        self._matcher = matcher
        self._end_id = end_id
        self._bits = allocate_token_bitmask(1, vocab_size)
        self._is_over = False

    def mask(self, logits: Floats) -> None:
        """Masks, in place, what the grammar forbids next: it allows the end token where it may end, all once it has."""
        if self._is_over:
            return
        fill_next_token_bitmask(self._matcher, self._bits)
        is_allowed = np.unpackbits(self._bits.view(np.uint8)[0], count=len(logits), bitorder="little").view(np.bool_)
        logits[~is_allowed] = -np.inf

    def accept(self, token_id: int) -> None:
        if token_id == self._end_id:
            self._is_over = True
        elif not self._is_over:
            self._matcher.consume_token(token_id)


class Grammars:
    """The compiled grammars of one model's tokenizer. They and the tokenizer are made on first use."""

    def __init__(self, directory: Path, vocab_size: int) -> None:
        self._directory = directory
        self._vocab_size = vocab_size
        self._compile = lru_cache(MAX_GRAMMARS)(self._compile_new)

    def walk(self, guide: Guide) -> Walk:
        """Returns a walk from the grammar's start. Raises ValueError, in vLLM's words, for an invalid guide."""
        matcher = self._compile(guide).deep_copy()
        return Walk(matcher, self._tokenizer.eos_token, self._vocab_size)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        path = self._directory / "tokenizer.json"
        if not path.exists():
            raise ValueError(f"no guide can be followed without {path}")
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return LLTokenizer(tokenizer.to_str(), n_vocab=self._vocab_size, eos_token=self._end_id(tokenizer))

    def _end_id(self, tokenizer: Tokenizer) -> int | None:
        """The tokenizer's own end token, as in transformers: end tokens of the model's configuration end no grammar."""
        path = self._directory / "tokenizer_config.json"
        named = json.loads(path.read_text()).get("eos_token") if path.exists() else None
        return None if named is None else tokenizer.token_to_id(named["content"] if isinstance(named, dict) else named)

    def _compile_new(self, guide: Guide) -> LLMatcher:
        try:
            grammar = grammar_of(guide)
        except (ValueError, KeyError, TypeError) as exc:
            raise ValueError(f"Invalid grammar specification: {exc}") from exc
        # Without the tokenizer, as in vLLM: special tokens cannot be named.
        if error := LLMatcher.validate_grammar(grammar):
            raise ValueError(f"Grammar error: {error}")
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"Grammar error: {matcher.get_error()}")
        return matcher


def grammar_of(guide: Guide) -> str:
    """Returns the guide's grammar in the library's own format."""
    if guide.kind in {"json", "json_schema"}:
        schema = '{"type": "object"}' if guide.kind == "json" else guide.text
        return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": True})
    return grammar_from("grammar" if guide.kind == "ebnf_grammar" else guide.kind, guide.text)
