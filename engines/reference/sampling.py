"""How the next token is picked from logits, for all rows of a batch at once.

In: logits and each row's SampleState. Out: token ids, and scores where wanted. A draw depends on seed and position
alone. Masks, bias, penalties and their order are vLLM's (v1/sample/sampler.py).
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from engines.reference.checkpoint import Floats
from engines.reference.drawing import Rule, draw, uniforms
from engines.reference.guide import Guide, Walk
from engines.reference.scores import Score, score

GREEDY_BELOW = 1e-5  # vLLM's _SAMPLING_EPS


@dataclass(frozen=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0 or -1 is off; without a `seed` one is drawn. Raises ValueError for a value
    out of range, in vLLM's words, which begin with the field.

    `end_ids` end an answer unless `ignore_eos`, `stop_ids` always. Before `min_tokens` neither can be sampled.
    `logit_bias`: token ids and the number added to their logits. `logprobs`, `prompt_logprobs`: how many of the
    likeliest tokens to return beside each token of the answer or the prompt; -1 means all, None no log-probabilities.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    end_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    guide: Guide | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for is_valid, message in (
            (self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}"),
            (self.min_tokens >= 0, f"min_tokens must be greater than or equal to 0, got {self.min_tokens}"),
            (
                self.min_tokens <= self.max_tokens,
                f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}",
            ),
            (isfinite(self.temperature), f"temperature must be a finite number, got {self.temperature}"),
            (self.temperature >= 0, f"temperature must be non-negative, got {self.temperature}"),
            (0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}"),
            (self.top_k >= -1, f"top_k must be 0 (disable), or at least 1, got {self.top_k}"),
            (0 <= self.min_p <= 1, f"min_p must be in [0, 1], got {self.min_p}"),
            (
                0 < self.repetition_penalty < inf,
                f"repetition_penalty must be greater than zero, got {self.repetition_penalty}",
            ),
            (abs(self.presence_penalty) <= 2, f"presence_penalty must be in [-2, 2], got {self.presence_penalty}"),
            (abs(self.frequency_penalty) <= 2, f"frequency_penalty must be in [-2, 2], got {self.frequency_penalty}"),
            ((self.logprobs or 0) >= -1, f"logprobs must be non-negative or -1, got {self.logprobs}"),
            (
                (self.prompt_logprobs or 0) >= -1,
                f"prompt_logprobs must be non-negative or -1, got {self.prompt_logprobs}",
            ),
        ):
            if not is_valid:
                raise ValueError(message)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class SampleState:
    """One request between its tokens: its seed, its count of tokens, and the tokens themselves if it has penalties.

    `walk`: the state of a guided answer in its grammar.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], vocab_size: int, walk: Walk | None = None
    ) -> None:
        self.params = params
        self.walk = walk
        self.seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        self.rule = Rule(params.temperature, params.top_k, params.top_p, params.min_p)
        self.generated = 0
        self.ending = frozenset(params.stop_ids) | frozenset(() if params.ignore_eos else params.end_ids)
        self._held_back = [token_id for token_id in {*params.end_ids, *params.stop_ids} if 0 <= token_id < vocab_size]
        self._biased = [token_id for token_id, _ in params.logit_bias]
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._counts = np.zeros(vocab_size, np.float32) if params.has_penalties else None
        self._is_seen = np.zeros(vocab_size, np.bool_) if params.has_penalties else None
        if self._is_seen is not None:
            self._is_seen[list(prompt)] = True
        self._is_always_constrained = params.has_penalties or bool(params.logit_bias)

    @property
    def is_constrained(self) -> bool:
        return self._is_always_constrained or (self.generated < self.params.min_tokens and bool(self._held_back))

    def constrain(self, logits: Floats) -> None:
        """Changes `logits` in place: holds back the ends before min_tokens, applies the bias, then the penalties."""
        if self.generated < self.params.min_tokens:
            self._hold_back(logits)
        if self._biased:
            logits[self._biased] += self._bias
        if self._counts is None or self._is_seen is None:
            return
        repeated = logits[self._is_seen]
        penalty = np.float32(self.params.repetition_penalty)
        logits[self._is_seen] = np.where(repeated > 0, repeated / penalty, repeated * penalty)
        logits -= np.float32(self.params.frequency_penalty) * self._counts
        logits -= np.float32(self.params.presence_penalty) * (self._counts > 0)

    def record(self, token_id: int) -> None:
        self.generated += 1
        if self._counts is not None and self._is_seen is not None:
            self._counts[token_id] += 1
            self._is_seen[token_id] = True
        if self.walk is not None:
            self.walk.accept(token_id)

    def _hold_back(self, logits: Floats) -> None:
        """Holds the ends back unless no other token is left: a grammar that has ended allows the end token alone."""
        held = logits[self._held_back]
        logits[self._held_back] = -np.inf
        if self.walk is not None and logits.max() == -np.inf:
            logits[self._held_back] = held


def guided(logits: Floats, states: Sequence[SampleState]) -> Floats:
    """The logits with each grammar's mask on its row; the same array where no row is guided."""
    rows = [(row, state.walk) for row, state in enumerate(states) if state.walk is not None]
    if rows:
        logits = logits.copy()
        for row, walk in rows:
            walk.mask(logits[row])
    return logits


def sample(logits: Floats, states: Sequence[SampleState]) -> NDArray[np.intp]:
    """One token for each row of [rows, vocab_size]. Changes neither argument."""
    constrained = [row for row, state in enumerate(states) if state.is_constrained]
    if constrained:
        logits = logits.copy()
        for row in constrained:
            states[row].constrain(logits[row])
    tokens: NDArray[np.intp] = logits.argmax(axis=1)
    drawn = [row for row, state in enumerate(states) if not state.params.is_greedy]
    if drawn:
        chosen = [states[row] for row in drawn]
        fractions = uniforms([state.seed for state in chosen], [state.generated for state in chosen])
        tokens[drawn] = draw(logits[drawn], [state.rule for state in chosen], fractions)
    return tokens


def scores(logits: Floats, tokens: NDArray[np.intp], states: Sequence[SampleState]) -> list[Score | None]:
    """Returns the scores of the sampled tokens; None where unwanted."""
    wanted = {row: state.params.logprobs for row, state in enumerate(states) if state.params.logprobs is not None}
    values: list[Score | None] = [None] * len(states)
    if wanted:
        rows = list(wanted)
        for row, value in zip(rows, score(logits[rows], tokens[rows].tolist(), list(wanted.values())), strict=True):
            values[row] = value
    return values
