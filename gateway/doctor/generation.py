"""Short generations by the gateway's own adapters, and what their order and pace give away of an engine.

In: a backend that takes token ids. Out: whether it answers, whether a short request overtakes a long one, how much
sooner a prompt is answered the second time. Each is ordered by events or by ratios within one run, never by a time.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams, TokenBackend, TokenLogprob
from gateway.errors import GatewayError

TIMEOUT_S = 60.0  # of one generation
SHORT_TOKENS = 2
LONG_TOKENS = (192, 768)  # the second where the first says no: an engine may have been that fast
PAIRS = 4
REPEATED_TOKENS = 1024
# What is cached but for its last block is answered in a small part of the time; noise does not halve four in a row.
SOONER = 0.5


@dataclass(frozen=True, slots=True)
class Speaker:
    """A backend, and what a request to its model needs. `vocab_size`: prompts are made of ids below it."""

    backend: TokenBackend
    prompt: Prompt
    eos_token_ids: tuple[int, ...]
    context_length: int
    vocab_size: int

    def request(self, prompt: Prompt, tokens: int) -> GenerateRequest:
        """For exactly that many tokens, greedy."""
        params = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0.0, ignore_eos=True)
        name = f"doctor-{random.getrandbits(48):012x}"
        return GenerateRequest(name, "doctor", prompt, params, self.eos_token_ids)


@dataclass(eq=False)
class Listener:
    """A sink that notes when the first token came. `ended` gives the moment of the end, or raises GatewayError."""

    first: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    first_at: float = 0.0
    count: int = 0

    def tokens(self, token_ids: Sequence[int]) -> None:
        if not self.count:
            self.first_at = time.monotonic()
            self.first.set()
        self.count += len(token_ids)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        """Never: none are asked for."""

    def finish(self, reason: FinishReason) -> None:
        self.first.set()
        self.ended.set_result(time.monotonic())

    def fail(self, error: GatewayError) -> None:
        self.first.set()
        self.ended.set_exception(error)


@asynccontextmanager
async def speaking(speaker: Speaker, prompt: Prompt, tokens: int) -> AsyncIterator[Listener]:
    """One generation under way; whatever happens inside, the engine is left afterwards."""
    listener = Listener()
    call = speaker.backend.start(speaker.request(prompt, tokens), listener)
    try:
        yield listener
    finally:
        call.cancel()
        if listener.ended.done():
            listener.ended.exception()  # retrieved, also where nobody waited for it


async def answers(speaker: Speaker) -> None:
    """Return once a few tokens have come. Raises GatewayError or TimeoutError."""
    async with asyncio.timeout(TIMEOUT_S), speaking(speaker, speaker.prompt, SHORT_TOKENS) as listener:
        await listener.ended


async def overtakes(speaker: Speaker) -> bool:
    """Whether a short request that comes later ends before a long one. Raises GatewayError or TimeoutError.

    An engine that batches in flight takes it in at the next step; one that does not, when the long one has ended.
    """
    room = speaker.context_length - len(speaker.prompt) - 1
    for tokens in LONG_TOKENS:
        if await _overtakes(speaker, min(tokens, room)):
            return True
    return False


async def _overtakes(speaker: Speaker, tokens: int) -> bool:
    async with asyncio.timeout(TIMEOUT_S), speaking(speaker, speaker.prompt, tokens) as long:
        await long.first.wait()
        async with speaking(speaker, speaker.prompt, SHORT_TOKENS) as short:
            await short.ended
            if not long.ended.done():
                return True
            await long.ended
            return False


async def remembers(speaker: Speaker) -> bool:
    """Whether a long prompt is answered much sooner the second time. Raises GatewayError or TimeoutError.

    True proves a prefix cache; False proves nothing, for the prompt may be too short for this engine to show one.
    """
    length = min(REPEATED_TOKENS, speaker.context_length // 2)
    ratios = []
    for _ in range(PAIRS):
        prompt = Prompt(tuple(random.choices(range(speaker.vocab_size), k=length)))
        first_s, again_s = await _time_to_first(speaker, prompt), await _time_to_first(speaker, prompt)
        ratios.append(again_s / first_s)
    return max(ratios) < SOONER


async def _time_to_first(speaker: Speaker, prompt: Prompt) -> float:
    began = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S), speaking(speaker, prompt, 1) as listener:
        await listener.ended
        return listener.first_at - began
