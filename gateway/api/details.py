"""What a client may ask to see beside an answer's text: its tokens' ids and log-probabilities.

In: scores and counted ids as they come. Out: the JSON of those not told yet. Knows no frames.
"""

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from gateway.core import TokenLogprob

NULL = b"null"
# Where a model gives a token no probability at all; what vLLM writes, since JSON has no infinity.
LOWEST_LOGPROB = -9999.0

Spell: TypeAlias = Callable[[int], bytes]


class Scores(ABC):
    """Log-probabilities in one endpoint's form. `spell` gives a token's bytes.

    A character of several tokens is shown by the last of them, so that the tokens' texts make up the text.
    """

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._reader = getincrementaldecoder("utf-8")("replace")

    @abstractmethod
    def encode(self, entries: Sequence[TokenLogprob]) -> bytes:
        """The `logprobs` of a choice that shows these tokens, which follow those of the call before."""

    def _read(self, token_id: int) -> str:
        """What this token adds to the text."""
        return self._reader.decode(self._spell(token_id))

    def _show(self, token_id: int) -> str:
        """A token on its own."""
        return self._spell(token_id).decode(errors="replace")


class ChatScores(Scores):
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...]}`."""

    def encode(self, entries: Sequence[TokenLogprob]) -> bytes:
        content = [
            {
                **self._describe(self._read(entry.token_id), entry.token_id, entry.logprob),
                "top_logprobs": [
                    self._describe(self._show(token_id), token_id, logprob) for token_id, logprob in entry.top
                ],
            }
            for entry in entries
        ]
        return orjson.dumps({"content": content, "refusal": None})

    def _describe(self, token: str, token_id: int, logprob: float | None) -> dict[str, object]:
        return {"token": token, "logprob": _finite(logprob), "bytes": list(self._spell(token_id))}


class TextScores(Scores):
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`, offsets in characters from the answer's start."""

    def __init__(self, spell: Spell) -> None:
        super().__init__(spell)
        self._offset = 0

    def encode(self, entries: Sequence[TokenLogprob]) -> bytes:
        tokens = [self._read(entry.token_id) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return orjson.dumps({
            "text_offset": offsets,
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "tokens": tokens,
            "top_logprobs": [self._show_top(*pair) for pair in zip(entries, tokens, strict=True)],
        })

    def _show_top(self, entry: TokenLogprob, token: str) -> dict[str, float | None] | None:
        if entry.logprob is None:
            return None
        # As in vLLM the token itself is among them, also when it is not one of the most probable.
        others = [(token_id, logprob) for token_id, logprob in entry.top if token_id != entry.token_id]
        return {token: _finite(entry.logprob)} | {self._show(other): _finite(logprob) for other, logprob in others}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)


@dataclass(slots=True)
class Details:
    """What is to be told with the next chunk of one choice. `scores`, `ids`: whether the client asked for them.

    `prompt_ids`: the prompt's, if they are to be told too, which happens once. `shows_prompt`: the prompt's scores come
    first, and are told as the answer's are.
    """

    scores: Scores | None
    wants_ids: bool = False
    prompt_ids: Sequence[int] | None = None
    shows_prompt: bool = False
    _entries: deque[TokenLogprob] = field(default_factory=deque)
    _told: list[TokenLogprob] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)

    def score(self, entries: Sequence[TokenLogprob]) -> None:
        if self.shows_prompt:
            self.shows_prompt = False
            self._told += entries
        else:
            self._entries.extend(entries)

    def show(self, token_ids: Sequence[int]) -> None:
        """These tokens are part of what the client sees, in order."""
        if self.wants_ids:
            self._ids += token_ids
        if self.scores is not None:
            self._told += [self._entries.popleft() for _ in token_ids if self._entries]

    def take_logprobs(self) -> bytes:
        if self.scores is None or not self._told:
            return NULL
        told, self._told = self._told, []
        return self.scores.encode(told)

    def take_ids(self) -> bytes:
        """More fields of the choice, with a comma before each."""
        if not self.wants_ids:
            return b""
        token_ids, self._ids = self._ids, []
        fields = b',"token_ids":' + orjson.dumps(token_ids)
        if self.prompt_ids is not None:
            fields += b',"prompt_token_ids":' + orjson.dumps(list(self.prompt_ids))
            self.prompt_ids = None
        return fields
