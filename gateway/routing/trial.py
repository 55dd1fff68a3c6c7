"""The first trial of a backend that was ejected: whether it generates a token.

In: a TokenBackend. Out: yes or no. No lease counts it, and no client waits for it.
"""

import asyncio
from collections.abc import Sequence
from secrets import token_hex

from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams, TokenBackend, TokenLogprob
from gateway.errors import GatewayError

TIMEOUT_S = 5.0
ANY_TOKEN = 1  # every vocabulary has it


async def generates(backend: TokenBackend) -> bool:
    """Has it generate one token from one. False on any failure, and after TIMEOUT_S."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(f"trial-{token_hex(8)}", "", Prompt((ANY_TOKEN,)), params, ())
    sink = _TrialSink()
    try:
        call = backend.start(request, sink)
    except GatewayError:
        return False
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await sink.ended
    except TimeoutError:
        backend.renew()  # else the next probe, or trial, may wait for a dead connection too
        return False
    finally:
        call.cancel()


class _TrialSink:
    """`ended`: whether a token and a proper end came."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._count = 0

    def tokens(self, token_ids: Sequence[int]) -> None:
        self._count += len(token_ids)

    def scores(self, entries: Sequence[TokenLogprob]) -> None: ...

    def finish(self, reason: FinishReason) -> None:
        self.ended.set_result(self._count > 0)

    def fail(self, error: GatewayError) -> None:
        self.ended.set_result(False)
