"""Log-probabilities on vLLM's wire: the events of /v1/completions to core.TokenLogprob, beside their ids and end.

Bytes in by plain calls. Tokens are named `token_id:N` there, as `return_tokens_as_token_ids` asks for.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.backends.calls import End
from gateway.backends.vllm_json import Answer
from gateway.core import GenerateRequest, TokenLogprob
from gateway.errors import GatewayError

PREFIX = "token_id:"


class ScoredAnswer(Answer):
    """An answer with log-probabilities: `scores` reads them, and `read` gives the ids and the end that came with them.

    With `echo` the first event holds the prompt's, before those of its own ids.
    """

    __slots__ = ("_entries", "_news", "_prompt_entries", "_prompt_left", "_prompt_top", "_top")

    def __init__(self, peer: str, request: GenerateRequest, if_refused: GatewayError | None = None) -> None:
        super().__init__(peer, if_refused)
        params = request.params
        self._moulds_left = 0  # an event equal to the one before tells a log-probability too
        self._top = params.logprobs
        self._prompt_top = params.prompt_logprobs
        self._prompt_left = 0 if params.prompt_logprobs is None else len(request.prompt)
        self._prompt_entries: list[TokenLogprob] = []
        self._entries: list[TokenLogprob] = []
        self._news: tuple[Sequence[int], End | None] = (), None

    def scores(self, data: bytes) -> list[list[TokenLogprob]]:
        """What to tell before the ids that `data` completed: the prompt's, once, and their own."""
        self._prompt_entries, self._entries = [], []
        self._news = super().read(data)
        return [entries for entries in (self._prompt_entries, self._entries) if entries]

    def read(self, data: bytes) -> tuple[Sequence[int], End | None]:
        return self._news

    def _read_event(self, event: bytes, token_ids: list[int]) -> End | None:
        end = super()._read_event(event, token_ids)
        if not isinstance(end, GatewayError):
            for choice in orjson.loads(event)["choices"]:
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
            self._prompt_entries += [_entry(*row, self._prompt_top) for row in rows[:first]]
        if self._top is not None:
            self._entries += [_entry(*row, self._top) for row in rows[first:]]


def _entry(name: str, logprob: float | None, alternatives: Mapping[str, float] | None, count: int) -> TokenLogprob:
    """vLLM puts the token itself first, and lets it stay where it is not among the most probable."""
    if not alternatives or not count:
        return TokenLogprob(_read_id(name), logprob)
    by_rank = sorted(alternatives.items(), key=lambda item: -item[1])
    return TokenLogprob(_read_id(name), logprob, tuple((_read_id(other), value) for other, value in by_rank[:count]))


def _read_id(name: str) -> int:
    if not name.startswith(PREFIX):
        raise ValueError("a token without its id")
    return int(name[len(PREFIX) :])
