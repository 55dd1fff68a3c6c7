"""How the next token is picked from logits, for all rows of a batch at once.

In: logits and each row's SampleState. Out: token ids, and log-probabilities where wanted. A draw depends on seed and
position alone. Masks, penalties and their order are vLLM's (v1/sample/sampler.py).
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.reference.checkpoint import Floats
from engines.reference.drawing import Rule, draw, uniforms

GREEDY_BELOW = 1e-5  # vLLM's _SAMPLING_EPS


@dataclass(frozen=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0 or -1 is off; `seed` None draws one. Raises ValueError out of range.

    `end_ids` end an answer unless `ignore_eos`, `stop_ids` always. Until `min_tokens` are out neither can be sampled.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    end_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self) -> None:
        for is_valid, message in (
            (self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}"),
            (0 <= self.min_tokens <= self.max_tokens, f"min_tokens must be in [0, max_tokens], got {self.min_tokens}"),
            (
                0 <= self.temperature < float("inf"),
                f"temperature must be finite and at least 0, got {self.temperature}",
            ),
            (0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}"),
            (self.top_k >= -1, f"top_k must be -1 (off), 0 (off) or positive, got {self.top_k}"),
            (self.repetition_penalty > 0, f"repetition_penalty must be above 0, got {self.repetition_penalty}"),
            (abs(self.presence_penalty) <= 2, f"presence_penalty must be in [-2, 2], got {self.presence_penalty}"),
            (abs(self.frequency_penalty) <= 2, f"frequency_penalty must be in [-2, 2], got {self.frequency_penalty}"),
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
    """What sampling remembers of one request: its seed, how many tokens are out, and which, if it is penalised."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        self.rule = Rule(params.temperature, params.top_k, params.top_p)
        self.generated = 0
        self.ending = frozenset(params.stop_ids) | frozenset(() if params.ignore_eos else params.end_ids)
        self._held_back = [token_id for token_id in {*params.end_ids, *params.stop_ids} if 0 <= token_id < vocab_size]
        self._counts = np.zeros(vocab_size, np.float32) if params.has_penalties else None
        self._is_seen = np.zeros(vocab_size, np.bool_) if params.has_penalties else None
        if self._is_seen is not None:
            self._is_seen[list(prompt)] = True

    @property
    def is_constrained(self) -> bool:
        return self._counts is not None or (self.generated < self.params.min_tokens and bool(self._held_back))

    def constrain(self, logits: Floats) -> None:
        """In place: the ends that min_tokens holds back, then the penalties."""
        if self.generated < self.params.min_tokens:
            logits[self._held_back] = -np.inf
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


def log_probabilities(logits: Floats, tokens: NDArray[np.intp], states: Sequence[SampleState]) -> list[float | None]:
    """Of the sampled tokens in the model's own distribution, before masks, penalties, temperature; None if unwanted."""
    wanted = [row for row, state in enumerate(states) if state.params.logprobs]
    values: list[float | None] = [None] * len(states)
    if wanted:
        rows = logits[wanted]
        rows = rows - rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(len(wanted)), tokens[wanted]] - np.log(np.exp(rows).sum(axis=1))
        for row, value in zip(wanted, chosen.tolist(), strict=True):
            values[row] = value
    return values
