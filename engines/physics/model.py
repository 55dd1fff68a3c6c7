"""The numbers of one engine, and how long a step of one of its replicas takes.

In: sequences, their context, prompt tokens. Out: milliseconds. Pure.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, Strict, with_config

Ms: TypeAlias = Annotated[float, Strict(), Field(ge=0, le=600_000)]
Count: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=100_000_000)]
Steps: TypeAlias = tuple[tuple[Annotated[int, Strict(), Field(ge=1, le=100_000)], Ms], ...]


def _check_steps(steps: Steps) -> Steps:
    if any(above[0] <= below[0] for below, above in pairwise(steps)):
        raise ValueError("must be sorted by sequences, each once")
    if any(ms <= 0 for _, ms in steps):
        raise ValueError("milliseconds must be above 0")
    return steps


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class EngineModel:
    """An engine by its own numbers; lengths in tokens, times in milliseconds of one step of one replica.

    A step in which a replica has `n` sequences that decode, with `context` tokens of KV, and prefills chunks of `m`
    tokens after `c` of the same prompt, takes at least

        s(n) + context_ms * context / 1e3 + prompt_ms * sum(m) / 1e3 + attention_ms * sum(m * (2c + m)) / 1e6

    and no less than `eager_ms` if it has more than `graph_tokens` tokens, for which no CUDA graph was captured, or than
    `mixed_ms` if it has prompt tokens. s is given by `steps_ms`, pairs of sequences and milliseconds, in straight lines
    that go on beyond the last pair. The step gives each sequence `tokens_per_step` tokens; with speculation it verifies
    `verified` tokens of each.

    The engine has `replicas`, each of which prefills up to `budget_tokens` in a step, less those that decode, and runs
    `max_sequences` at once at most, with `kv_tokens` of KV; what is beyond waits. `request_ms`: what an answer takes
    besides its steps.
    """

    steps_ms: Annotated[Steps, Field(min_length=1, max_length=64), AfterValidator(_check_steps)]
    context_ms: Ms = 0.0
    prompt_ms: Ms = 0.0
    attention_ms: Ms = 0.0
    eager_ms: Ms = 0.0
    mixed_ms: Ms = 0.0
    request_ms: Ms = 0.0
    tokens_per_step: Annotated[float, Strict(), Field(ge=1, le=64)] = 1.0
    verified: Annotated[int, Strict(), Field(ge=1, le=64)] = 1
    replicas: Annotated[int, Strict(), Field(ge=1, le=1024)] = 1
    graph_tokens: Count = 512
    budget_tokens: Count = 8192
    max_sequences: Count = 256
    kv_tokens: Count | None = None

    def decode_ms(self, sequences: float, context: float) -> float:
        """Returns the time of a step without prompt tokens, before the floor of an eager one."""
        return self._find_step_ms(sequences) + self.context_ms * context / 1e3

    def floor_ms(self, sequences: float, prompt_tokens: float) -> float:
        """Returns the least time of a step."""
        if prompt_tokens + sequences * self.verified > self.graph_tokens:
            return self.eager_ms
        return self.mixed_ms if prompt_tokens > 0 else 0.0

    def prefill_ms(self, prompt_tokens: float, squared: float) -> float:
        """Returns what prompt tokens add to a step. `squared`: the sum of m * (2c + m)."""
        return self.prompt_ms * prompt_tokens / 1e3 + self.attention_ms * squared / 1e6

    def step_ms(self, sequences: float, context: float, prompt_tokens: float = 0.0, squared: float = 0.0) -> float:
        """Returns the time of a step."""
        needed = self.decode_ms(sequences, context) + self.prefill_ms(prompt_tokens, squared)
        return max(needed, self.floor_ms(sequences, prompt_tokens))

    def scaled(self, decode: float, prefill: float) -> "EngineModel":
        """Returns an engine whose decoding, and whose prefill, take so many times as long."""
        return replace(
            self,
            steps_ms=tuple((count, ms * decode) for count, ms in self.steps_ms),
            context_ms=self.context_ms * decode,
            prompt_ms=self.prompt_ms * prefill,
            attention_ms=self.attention_ms * prefill,
            eager_ms=self.eager_ms * prefill,
            mixed_ms=self.mixed_ms * prefill,
        )

    def slowed(self, scale: float) -> "EngineModel":
        """Returns an engine for which everything takes so many times as long."""
        return replace(self.scaled(scale, scale), request_ms=self.request_ms * scale)

    def _find_step_ms(self, sequences: float) -> float:
        steps = self.steps_ms
        if sequences <= steps[0][0] or len(steps) == 1:
            return steps[0][1]
        above = min(bisect_right(steps, sequences, key=_first), len(steps) - 1)
        (low, low_ms), (high, high_ms) = steps[above - 1], steps[above]
        return low_ms + (high_ms - low_ms) * (sequences - low) / (high - low)


def _first(pair: Sequence[float]) -> float:
    return pair[0]
