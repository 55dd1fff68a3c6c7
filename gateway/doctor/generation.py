"""Short generations by the gateway's own adapters, and what their order and pace show of an engine.

In: a backend that takes token ids. Out: whether it answers, whether a short request overtakes a long one, whether a
prompt is answered sooner the second time. Each is judged by the order of events or by ratios, never by a time.
"""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gateway.core import GenerateRequest, Prompt, SamplingParams, TokenBackend
from gateway.routing.trial import Trial, trying

TIMEOUT_S = 60.0  # of one generation
SHORT_TOKENS = 2
LONG_TOKENS = (192, 768)  # the second if nothing overtook the first: an engine may have been that fast
PAIRS = 4
REPEATED_TOKENS = 1024
# A prompt cached but for its last block is answered in a small part of the time; noise does not halve four in a row.
MAX_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Examiner:
    """A backend, and what a request to its model needs. `vocab_size`: prompts are made of ids below it."""

    backend: TokenBackend
    prompt: Prompt
    eos_token_ids: tuple[int, ...]
    context_length: int
    vocab_size: int

    def request(self, prompt: Prompt, tokens: int) -> GenerateRequest:
        """Returns a greedy request for exactly that many tokens."""
        params = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0.0, ignore_eos=True)
        name = f"doctor-{random.getrandbits(48):012x}"
        return GenerateRequest(name, "doctor", prompt, params, self.eos_token_ids)

    def trying(self, prompt: Prompt, tokens: int) -> AbstractAsyncContextManager[Trial]:
        return trying(self.backend, self.request(prompt, tokens))


async def answers(examiner: Examiner) -> None:
    """Returns once a few tokens have come. Raises GatewayError or TimeoutError."""
    async with asyncio.timeout(TIMEOUT_S), examiner.trying(examiner.prompt, SHORT_TOKENS) as trial:
        await trial.ended


async def overtakes(examiner: Examiner) -> bool:
    """Returns whether a short request that comes later ends before a long one. Raises GatewayError or TimeoutError.

    An engine that batches in flight begins it at the next step; another engine begins it when the long one has ended.
    """
    room = examiner.context_length - len(examiner.prompt) - 1
    for tokens in LONG_TOKENS:
        if await _overtakes(examiner, min(tokens, room)):
            return True
    return False


async def _overtakes(examiner: Examiner, tokens: int) -> bool:
    async with asyncio.timeout(TIMEOUT_S), examiner.trying(examiner.prompt, tokens) as long:
        await long.first.wait()
        async with examiner.trying(examiner.prompt, SHORT_TOKENS) as short:
            await short.ended
            if not long.ended.done():
                return True
            await long.ended
            return False


async def remembers(examiner: Examiner) -> bool:
    """Returns whether a long prompt is answered much sooner the second time. Raises GatewayError or TimeoutError.

    True proves a prefix cache; False proves nothing, for the prompt may be too short for this engine to show one.
    """
    length = min(REPEATED_TOKENS, examiner.context_length // 2)
    ratios = []
    for _ in range(PAIRS):
        prompt = Prompt(tuple(random.choices(range(examiner.vocab_size), k=length)))
        first_s, again_s = await _time_to_first(examiner, prompt), await _time_to_first(examiner, prompt)
        ratios.append(again_s / first_s)
    return max(ratios) < MAX_RATIO


async def _time_to_first(examiner: Examiner, prompt: Prompt) -> float:
    began = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S), examiner.trying(prompt, 1) as trial:
        await trial.ended
        return trial.first_at - began
