"""Log-probabilities on vLLM's wire: the events of /v1/completions to core.TokenLogprob, beside their ids and end.

Bytes in by plain calls. Tokens are named `token_id:N` there, as `return_tokens_as_token_ids` asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gateway.backends.calls import LARGEST_VOCABULARY, End
from gateway.backends.vllm_json import FORM_PARTS, ID_BYTES, MAX_DIGITS, Answer
from gateway.core import GenerateRequest, TokenLogprob
from gateway.errors import GatewayError

PREFIX = "token_id:"
SCORE_BYTES = 48  # of a token's name beside its log-probability
NUMBERS = (float, int)
MAX_AT_ONCE = 500  # making them, and JSON of them again, takes 10 us each, of a prompt of 30,000 tokens 0.4 s
Row: TypeAlias = tuple[
    Any, Any, Any
]  # Any: decoded JSON; a token's name, its log-probability, and the most probable ones


class ScoredAnswer(Answer):
    """An answer with log-probabilities: `scores` reads them, and `read` gives the ids and the end that came with them.

    With `echo` the first event holds the prompt's, before those of its own ids.
    """

    __slots__ = ("_news", "_prompt_left", "_prompt_rows", "_prompt_top", "_rows", "_top")

    def __init__(
        self,
        peer: str,
        request: GenerateRequest,
        vocab_size: int = LARGEST_VOCABULARY,
        if_refused: GatewayError | None = None,
    ) -> None:
        super().__init__(peer, request, vocab_size, if_refused)
        params = request.params
        self._moulds_left = 0  # an event equal to the one before tells a log-probability too
        self._top = params.logprobs
        self._prompt_top = params.prompt_logprobs
        self._prompt_left = 0 if params.prompt_logprobs is None else len(request.prompt)
        self._prompt_rows: list[Row] = []
        self._rows: list[Row] = []
        self._news: tuple[Sequence[int], End | None] = (), None

    def scores(self, data: bytes) -> Iterator[list[TokenLogprob]]:
        """What to tell before the ids that `data` completed: the prompt's, then their own, MAX_AT_ONCE at a time.

        `read` is for when it has ended.
        """
        self._prompt_rows, self._rows = [], []
        self._news = super().read(data)
        try:
            for rows, top in ((self._prompt_rows, self._prompt_top or 0), (self._rows, self._top or 0)):
                for start in range(0, len(rows), MAX_AT_ONCE):
                    yield [self._entry(*row, top) for row in rows[start : start + MAX_AT_ONCE]]
        except (ValueError, LookupError, TypeError, AttributeError):
            self._news = (), self._nonsense()

    def read(self, data: bytes) -> tuple[Sequence[int], End | None]:
        return self._news

    @staticmethod
    def _bytes_per_id(request: GenerateRequest) -> int:
        return ID_BYTES + SCORE_BYTES * (2 + _count_top(request))

    def _count_most(self) -> tuple[int, int]:
        # Of each token: its name and an object, in which are itself and the most probable ones; in rows of their own
        # its id, log-probability and offset.
        each = 3 + max(self._top or 0, self._prompt_top or 0)
        return FORM_PARTS + self._most_ids * each, FORM_PARTS + self._most_ids * (each + 5)

    def _read_chunk(self, chunk: dict[str, Any], token_ids: list[int]) -> End | None:  # Any: a decoded JSON object
        end = super()._read_chunk(chunk, token_ids)
        if not isinstance(end, GatewayError):
            for choice in chunk["choices"]:
                self._note(choice)
        return end

    def _note(self, choice: Mapping[str, Any]) -> None:  # Any: a decoded JSON object
        told = choice["logprobs"]
        names = told["tokens"]
        if not names:
            return
        first = len(names) - len(choice["token_ids"])
        if first != self._prompt_left:
            raise ValueError("log-probabilities that belong to no token")
        self._prompt_left = 0
        rows = list(zip(names, told["token_logprobs"], told["top_logprobs"], strict=True))
        if self._prompt_top is not None:
            self._prompt_rows += rows[:first]
        if self._top is not None:
            self._rows += rows[first:]

    def _entry(
        self, name: str, logprob: float | None, alternatives: Mapping[str, float] | None, count: int
    ) -> TokenLogprob:
        """vLLM puts the token itself first, and lets it stay where it is not among the most probable."""
        if logprob is not None and type(logprob) not in NUMBERS:
            raise TypeError("a log-probability that is no number")
        if not alternatives or not count:
            return TokenLogprob(self._read_id(name), logprob)
        by_rank = sorted(alternatives.items(), key=lambda item: -item[1])[:count]
        top = tuple([(self._read_id(other), value) for other, value in by_rank])
        return TokenLogprob(self._read_id(name), logprob, top)

    def _read_id(self, name: str) -> int:
        digits = name.removeprefix(PREFIX)
        if digits == name or not digits.isdecimal() or len(digits) > MAX_DIGITS:
            raise ValueError("a token without its id")
        token_id = int(digits)
        if token_id >= self._vocab_size:
            raise ValueError("an id outside the vocabulary")
        return token_id


def _count_top(request: GenerateRequest) -> int:
    return max(request.params.logprobs or 0, request.params.prompt_logprobs or 0)
