"""Continuous batching: which requests compute in each step, and when an answer ends.

In: requests and cancellations. Out: every step's tokens. Pure and synchronous: no threads, no clock, no I/O.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engines.reference.cache import KVCache
from engines.reference.checkpoint import Checkpoint, Floats
from engines.reference.generation import FinishReason, Generation
from engines.reference.guide import Grammars, Walk
from engines.reference.model import Model
from engines.reference.sampling import SamplingParams, guided, sample, scores
from engines.reference.scores import Score


class TokenOutput(NamedTuple):
    """`position` counts the answer's tokens from 1. The token that ends an answer is included, with its reason.

    `score` and, with the first token, `prompt_scores` are present where the request asks for them. `cached`: prompt
    tokens that were not read, because a prefix cache had them.
    """

    request_id: str
    token_id: int
    score: Score | None
    finish_reason: FinishReason | None
    position: int
    prompt_scores: Sequence[Score | None] | None = None
    cached: int = 0

    @property
    def logprob(self) -> float | None:
        return None if self.score is None else self.score.logprob


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of any engine at one moment. Counts of steps and tokens are those since the start.

    `capacity`: requests that it computes at most. `late_tokens`: those that a paced engine computed too late.
    `tokens_per_block`: a unit of account where an engine has no blocks; the default is TensorRT-LLM's. `counts_blocks`:
    whether `kv_tokens_total`, over all replicas, is a real engine's. `drafts`: steps of sequences that speculate;
    `drafted` and `accepted`: their tokens beyond one a step. `queried` and `found`: prompt tokens that were looked for
    in a prefix cache, and were there; `queried` None: there is no such cache.
    """

    running: int
    waiting: int
    capacity: int
    kv_tokens_used: int
    kv_tokens_total: int
    steps: int
    tokens_per_block: int = 32
    prompt_tokens: int = 0
    generated_tokens: int = 0
    late_tokens: int = 0
    replicas: int = 1
    counts_blocks: bool = False
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    queried: int | None = None
    found: int = 0


class Engine:
    """Requests wait in order of arrival while `max_batch` run; up to `prefill_tokens` of prompts enter a step.

    A running request's slot is its index in `_running`, so the cache stays dense. Guides need the `grammars` of the
    model's tokenizer.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_batch: int = 128,
        prefill_tokens: int = 256,
        grammars: Grammars | None = None,
    ) -> None:
        if max_batch < 1 or prefill_tokens < 1:
            raise ValueError("max_batch and prefill_tokens must be at least 1")
        self._config = checkpoint.config
        self._model = Model(checkpoint)
        self.grammars = grammars
        self._cache = KVCache(checkpoint.config, max_batch)
        self._prefill_tokens = prefill_tokens
        self._requests: dict[str, Generation] = {}
        self._waiting: dict[str, Generation] = {}
        self._prefilling: dict[str, Generation] = {}
        self._running: list[Generation] = []
        self._generated_tokens = self._prompt_tokens = self._steps = 0

    def __repr__(self) -> str:
        return f"<Engine running={len(self._running)} waiting={len(self._waiting)} of {self._cache.slots}>"

    @property
    def model(self) -> Model:
        return self._model

    @property
    def context_length(self) -> int:
        return self._config.context_length

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def stats(self) -> EngineLoad:
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            capacity=self._cache.slots,
            kv_tokens_used=sum(generation.computed for generation in self._running),
            kv_tokens_total=self._cache.capacity_tokens,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            steps=self._steps,
        )

    def find_tokens(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Returns how many tokens an answer has at most."""
        return max(min(params.max_tokens, self.context_length - len(prompt)), 1)

    def add(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        """Queue a request for the next step. Raises ValueError for an id in use, and for a request that cannot run."""
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is in use")
        if not prompt:
            raise ValueError("the prompt is empty")
        if len(prompt) >= self.context_length:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; the context of {self.context_length} leaves no room"
            )
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise ValueError(f"the prompt holds token ids outside the vocabulary of {self.vocab_size}")
        if any(not 0 <= token_id < self.vocab_size for token_id, _ in params.logit_bias):
            raise ValueError(f"logit_bias holds token ids outside the vocabulary of {self.vocab_size}")
        generation = Generation(request_id, prompt, params, self.vocab_size, self._walk(params))
        self._requests[request_id] = self._waiting[request_id] = generation

    def cancel(self, request_id: str) -> None:
        """Free what the request holds, in any phase; idempotent, and harmless after its end."""
        generation = self._requests.get(request_id)
        if generation is not None:
            self._remove(generation)

    def step(self, only: Collection[str] | None = None) -> list[TokenOutput]:
        """Compute one token for every request that decodes, and prompts up to the budget; `only` limits it to these
        ids.
        """
        self._admit()
        scheduled = self._schedule(only)
        if not scheduled:
            return []
        logits = self._model.forward([generation.chunk(tokens) for generation, tokens in scheduled], self._cache)
        if self._prefilling:
            self._score_prompts(scheduled, logits)
        self._count(scheduled)
        rows = [row for row, (generation, _) in enumerate(scheduled) if generation.pending == 0]
        if len(rows) < len(logits):
            logits = logits[rows]
        return self._advance([scheduled[row][0] for row in rows], logits)

    def _walk(self, params: SamplingParams) -> Walk | None:
        if params.guide is None:
            return None
        if self.grammars is None:
            raise ValueError("this engine has no tokenizer to follow a guide with")
        return self.grammars.walk(params.guide)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._cache.slots:
            generation = self._waiting.pop(next(iter(self._waiting)))
            generation.slot = len(self._running)
            self._running.append(generation)
            if generation.pending > 1:
                self._prefilling[generation.request_id] = generation

    def _schedule(self, only: Collection[str] | None) -> list[tuple[Generation, int]]:
        """The requests and their tokens: first those that decode one each, in slot order, then prompts within the
        budget.
        """
        chosen = self._running if only is None else [g for g in self._running if g.request_id in only]
        scheduled = [(generation, 1) for generation in chosen if generation.pending == 1]
        budget = self._prefill_tokens
        for generation in self._prefilling.values():
            if budget and (only is None or generation.request_id in only):
                tokens = min(generation.pending, budget)
                scheduled.append((generation, tokens))
                budget -= tokens
        return scheduled

    def _score_prompts(self, scheduled: Sequence[tuple[Generation, int]], logits: Floats) -> None:
        """Scores prompts: after the scheduled rows come those of scored chunks' inner tokens, in the same order."""
        inner = len(scheduled)
        for row, (generation, tokens) in enumerate(scheduled):
            if generation.is_scoring:
                rows = [*range(inner, inner + tokens - 1), row]
                generation.score_prompt(logits[rows])
                inner += tokens - 1

    def _count(self, scheduled: Sequence[tuple[Generation, int]]) -> None:
        self._steps += 1
        for generation, tokens in scheduled:
            generation.computed += tokens
            if generation.computed <= generation.prompt_tokens:
                self._prompt_tokens += tokens
            if generation.pending <= 1:  # a prompt's last token alone is a row like any other
                self._prefilling.pop(generation.request_id, None)

    def _advance(self, generations: Sequence[Generation], logits: Floats) -> list[TokenOutput]:
        """Sample one token for each row, and free the requests that it ends."""
        states = [generation.state for generation in generations]
        logits = guided(logits, states)
        tokens = sample(logits, states)
        self._generated_tokens += len(generations)
        scored = scores(logits, tokens, states)
        return [
            self._deliver(generation, token_id, score)
            for generation, token_id, score in zip(generations, tokens.tolist(), scored, strict=True)
        ]

    def _deliver(self, generation: Generation, token_id: int, score: Score | None) -> TokenOutput:
        finish_reason = generation.append(token_id, self.context_length)
        if finish_reason is not None:
            self._remove(generation)
        position = generation.state.generated
        prompt_scores = generation.take_prompt_scores() if position == 1 else None
        return TokenOutput(generation.request_id, token_id, score, finish_reason, position, prompt_scores)

    def _remove(self, generation: Generation) -> None:
        del self._requests[generation.request_id]
        if self._waiting.pop(generation.request_id, None) is not None:
            return
        self._prefilling.pop(generation.request_id, None)
        last = self._running.pop()
        if last is not generation:
            self._cache.move(last.slot, generation.slot, last.computed)
            self._running[generation.slot] = last
            last.slot = generation.slot
