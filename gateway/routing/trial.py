"""One request of the gateway's own, to see whether a backend generates; no lease counts it, and no client waits for it.

In: a TokenBackend. Out: what came, and when. The first trial of a backend that was ejected is a single token.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex

from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams, TokenBackend, TokenLogprob
from gateway.errors import GatewayError

TIMEOUT_S = 5.0
ANY_TOKEN = 1  # every vocabulary has it


@dataclass(eq=False)
class Trial:
    """A sink that notes when the first token came. `ended`: the time of the end; raises GatewayError if it failed."""

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
        """Never called: no trial asks for any."""

    def finish(self, reason: FinishReason) -> None:
        self.first.set()
        self.ended.set_result(time.monotonic())

    def fail(self, error: GatewayError) -> None:
        self.first.set()
        self.ended.set_exception(error)


@asynccontextmanager
async def trying(backend: TokenBackend, request: GenerateRequest) -> AsyncIterator[Trial]:
    """Starts a generation and yields its Trial; cancels it on leaving. Raises GatewayError if it does not begin."""
    trial = Trial()
    call = backend.start(request, trial)
    try:
        yield trial
    finally:
        call.cancel()
        if trial.ended.done():
            trial.ended.exception()  # retrieved, also where nobody waited for it


async def generates(backend: TokenBackend) -> bool:
    """Has it generate one token from one. False on any failure, and after TIMEOUT_S."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(f"trial-{token_hex(8)}", "", Prompt((ANY_TOKEN,)), params, ())
    try:
        async with asyncio.timeout(TIMEOUT_S), trying(backend, request) as trial:
            await trial.ended
            return trial.count > 0
    except GatewayError:
        return False
    except TimeoutError:
        backend.renew()  # else the next probe, or trial, may wait for a dead connection too
        return False
