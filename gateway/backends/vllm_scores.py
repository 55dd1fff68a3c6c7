"""vLLM's log-probabilities: the events of /v1/completions to core.TokenLogprob, beside their ids and end.

Bytes in by plain calls. Tokens are named `token_id:N` in these events, because of `return_tokens_as_token_ids`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gateway.backends.calls import LARGEST_VOCABULARY, End
from gateway.backends.vllm_json import EVENT_BASE_PARTS, EVENT_ID_BYTES, MAX_ID_DIGITS, EventReader
from gateway.core import GenerateRequest, TokenLogprob
from gateway.errors import GatewayError

ID_PREFIX = "token_id:"
EVENT_SCORE_BYTES = 48  # of a token's name beside its log-probability
NUMBERS = (float, int)
MAX_AT_ONCE = 500  # to parse and to render one takes 10 us, for a prompt of 30,000 tokens 0.4 s
# A token's name, its log-probability, and the most probable tokens. Any: decoded JSON.
Row: TypeAlias = tuple[Any, Any, Any]


class ScoredEventReader(EventReader):
    """Reads an answer with log-probabilities: `scores` returns those, and then `read` the ids and the end beside them.

    With `echo` the first event holds the prompt's log-probabilities before those of its own ids.
    """

    __slots__ = ("_ids_and_end", "_prompt_left", "_prompt_rows", "_prompt_top", "_rows", "_top")

    def __init__(
        self,
        peer: str,
        request: GenerateRequest,
        vocab_size: int = LARGEST_VOCABULARY,
        if_refused: GatewayError | None = None,
    ) -> None:
        super().__init__(peer, request, vocab_size, if_refused)
        params = request.params
        self._layouts_left = 0  # every event has to be parsed for its log-probabilities
        self._top = params.logprobs
        self._prompt_top = params.prompt_logprobs
        self._prompt_left = 0 if params.prompt_logprobs is None else len(request.prompt)
        self._prompt_rows: list[Row] = []
        self._rows: list[Row] = []
        self._ids_and_end: tuple[Sequence[int], End | None] = (), None

    def scores(self, data: bytes) -> Iterator[list[TokenLogprob]]:
        """Yields the entries in `data`, MAX_AT_ONCE at a time: the prompt's, then those of the ids.

        Call `read` when it has ended.
        """
        self._prompt_rows, self._rows = [], []
        self._ids_and_end = super().read(data)
        try:
            for rows, top in ((self._prompt_rows, self._prompt_top or 0), (self._rows, self._top or 0)):
                for start in range(0, len(rows), MAX_AT_ONCE):
                    yield [self._entry(*row, top) for row in rows[start : start + MAX_AT_ONCE]]
        except (ValueError, LookupError, TypeError, AttributeError):
            self._ids_and_end = (), self._protocol_error()

    def read(self, data: bytes) -> tuple[Sequence[int], End | None]:
        return self._ids_and_end

    @staticmethod
    def _bytes_per_id(request: GenerateRequest) -> int:
        return EVENT_ID_BYTES + EVENT_SCORE_BYTES * (2 + _count_top(request))

    def _max_parts_and_commas(self) -> tuple[int, int]:
        # For each token: its name, and an object of the token itself and the most probable ones; in lists of their own
        # its id, log-probability and offset.
        each = 3 + max(self._top or 0, self._prompt_top or 0)
        return EVENT_BASE_PARTS + self._max_ids * each, EVENT_BASE_PARTS + self._max_ids * (each + 5)

    def _read_chunk(self, chunk: dict[str, Any], token_ids: list[int]) -> End | None:  # Any: a decoded JSON object
        end = super()._read_chunk(chunk, token_ids)
        if not isinstance(end, GatewayError):
            for choice in chunk["choices"]:
                self._collect_rows(choice)
        return end

    def _collect_rows(self, choice: Mapping[str, Any]) -> None:  # Any: a decoded JSON object
        logprobs = choice["logprobs"]
        names = logprobs["tokens"]
        if not names:
            return
        first = len(names) - len(choice["token_ids"])
        if first != self._prompt_left:
            raise ValueError("log-probabilities without a token")
        self._prompt_left = 0
        rows = list(zip(names, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))
        if self._prompt_top is not None:
            self._prompt_rows += rows[:first]
        if self._top is not None:
            self._rows += rows[first:]

    def _entry(
        self, name: str, logprob: float | None, alternatives: Mapping[str, float] | None, count: int
    ) -> TokenLogprob:
        """Sorts and cuts `alternatives`: vLLM puts the token first, even if not among the `count` most probable."""
        if logprob is not None and type(logprob) not in NUMBERS:
            raise TypeError("a log-probability that is not a number")
        if not alternatives or not count:
            return TokenLogprob(self._read_id(name), logprob)
        by_rank = sorted(alternatives.items(), key=lambda item: -item[1])[:count]
        top = tuple([(self._read_id(other), value) for other, value in by_rank])
        return TokenLogprob(self._read_id(name), logprob, top)

    def _read_id(self, name: str) -> int:
        digits = name.removeprefix(ID_PREFIX)
        if digits == name or not digits.isdecimal() or len(digits) > MAX_ID_DIGITS:
            raise ValueError("a token without its id")
        token_id = int(digits)
        if token_id >= self._vocab_size:
            raise ValueError("an id outside the vocabulary")
        return token_id


def _count_top(request: GenerateRequest) -> int:
    return max(request.params.logprobs or 0, request.params.prompt_logprobs or 0)
