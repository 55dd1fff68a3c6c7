"""What a client may ask to see beside an answer's text: the ids and log-probabilities of its tokens.

In: scores and ids as they come. Out: the JSON of those that no chunk has shown yet. Knows no frames.
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
MIN_LOGPROB = -9999.0

Spell: TypeAlias = Callable[[int], bytes]


class Scores(ABC):
    """Log-probabilities in one endpoint's form, each made JSON as it comes. `spell` gives a token's bytes.

    Encoding all at the answer's end would hold up every other answer: with 20 alternatives a token costs 40 us. A
    character of several tokens is shown by the last of them, so that the tokens' texts make up the text.
    """

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._reader = getincrementaldecoder("utf-8")("replace")
        self._encoded: list[bytes] = []

    @property
    def has_new(self) -> bool:
        """Whether scores were added since the last `take`."""
        return bool(self._encoded)

    def add(self, entry: TokenLogprob) -> None:
        """Adds the score of the token that follows those added before."""
        self._encoded.append(self._encode(entry, self._reader.decode(self._spell(entry.token_id))))

    def take(self) -> bytes:
        """Returns the `logprobs` of a chunk with the tokens added since the last `take`."""
        encoded, self._encoded = self._encoded, []
        return self._join(encoded)

    @abstractmethod
    def _encode(self, entry: TokenLogprob, token: str) -> bytes:
        """Returns the entry's JSON. `token`: what it adds to the text."""

    @abstractmethod
    def _join(self, encoded: Sequence[bytes]) -> bytes: ...

    def _show(self, token_id: int) -> str:
        """Returns the text of a token on its own."""
        return self._spell(token_id).decode(errors="replace")


class ChatScores(Scores):
    """Scores in the form `{"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...]}`."""

    def _encode(self, entry: TokenLogprob, token: str) -> bytes:
        return orjson.dumps({
            **self._describe(token, entry.token_id, entry.logprob),
            "top_logprobs": [
                self._describe(token if token_id == entry.token_id else self._show(token_id), token_id, logprob)
                for token_id, logprob in entry.top
            ],
        })

    def _join(self, encoded: Sequence[bytes]) -> bytes:
        return b'{"content":[%b],"refusal":null}' % b",".join(encoded)

    def _describe(self, token: str, token_id: int, logprob: float | None) -> dict[str, object]:
        return {"token": token, "logprob": _finite(logprob), "bytes": list(self._spell(token_id))}


class ListedScores(ChatScores):
    """Scores in the form `[{"token", "logprob", "bytes", "top_logprobs"}, ...]`."""

    def _join(self, encoded: Sequence[bytes]) -> bytes:
        return b"[%b]" % b",".join(encoded)


class TextScores(Scores):
    """Scores in columns: tokens, token_logprobs, top_logprobs, text_offset (characters from the answer's start)."""

    def __init__(self, spell: Spell) -> None:
        super().__init__(spell)
        self._offset = 0
        self._offsets: list[int] = []
        self._logprobs: list[float | None] = []
        self._tokens: list[str] = []

    def _encode(self, entry: TokenLogprob, token: str) -> bytes:
        self._offsets.append(self._offset)
        self._logprobs.append(_finite(entry.logprob))
        self._tokens.append(token)
        self._offset += len(token)
        return orjson.dumps(self._show_top(entry, token))

    def _join(self, encoded: Sequence[bytes]) -> bytes:
        columns = (self._offsets, self._logprobs, self._tokens)
        self._offsets, self._logprobs, self._tokens = [], [], []
        values = (*map(orjson.dumps, columns), b",".join(encoded))
        return b'{"text_offset":%b,"token_logprobs":%b,"tokens":%b,"top_logprobs":[%b]}' % values

    def _show_top(self, entry: TokenLogprob, token: str) -> dict[str, float | None] | None:
        if entry.logprob is None:
            return None
        # As in vLLM the token itself is among them, also when it is not one of the most probable.
        others = [(token_id, logprob) for token_id, logprob in entry.top if token_id != entry.token_id]
        return {token: _finite(entry.logprob)} | {self._show(other): _finite(logprob) for other, logprob in others}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, MIN_LOGPROB)


@dataclass(slots=True)
class Details:
    """Scores and ids that the next chunk of one choice will show. `scores`, `wants_ids`: what the client asked for.

    `prompt_ids`: the prompt's, if the first chunk shows them too. `prompt_left`: how many scores of the prompt's tokens
    come before the answer's, and are shown like those.
    """

    scores: Scores | None
    wants_ids: bool = False
    prompt_ids: Sequence[int] | None = None
    prompt_left: int = 0
    _entries: deque[TokenLogprob] = field(default_factory=deque)
    _ids: list[int] = field(default_factory=list)

    def score(self, entries: Sequence[TokenLogprob]) -> None:
        if self.prompt_left > 0:
            self.prompt_left -= len(entries)
            self._encode_scores(entries)
        else:
            self._entries.extend(entries)

    def drop_unshown(self) -> None:
        """Drops the scores whose tokens did not come."""
        self._entries.clear()

    def show(self, token_ids: Sequence[int]) -> None:
        """Notes that these tokens, in order, are part of what the client sees."""
        if self.wants_ids:
            self._ids += token_ids
        if self.scores is not None:
            self._encode_scores([self._entries.popleft() for _ in token_ids if self._entries])

    def take_logprobs(self) -> bytes:
        return NULL if self.scores is None or not self.scores.has_new else self.scores.take()

    def take_ids(self) -> bytes:
        """Returns more fields of the choice, with a comma before each."""
        if not self.wants_ids:
            return b""
        token_ids, self._ids = self._ids, []
        fields = b',"token_ids":' + orjson.dumps(token_ids)
        if self.prompt_ids is not None:
            fields += b',"prompt_token_ids":' + orjson.dumps(list(self.prompt_ids))
            self.prompt_ids = None
        return fields

    def _encode_scores(self, entries: Sequence[TokenLogprob]) -> None:
        if self.scores is not None:
            for entry in entries:
                self.scores.add(entry)
