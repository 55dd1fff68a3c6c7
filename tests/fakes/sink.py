"""A sink that records what it receives, and every breach of its contract."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.core import Call, FinishReason, TokenLogprob
from gateway.errors import GatewayError

PATIENCE_S = 60.0  # for a loaded machine, on which vLLM compiles what its first log probabilities need


async def settled(is_so: Callable[[], bool], what: str) -> None:
    """Wait until `is_so` returns True, or fail with `what`."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110 - what is awaited raises no event, it only becomes so
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"still not so: {what}") from None


class RecordingSink:
    """`reaction`, if given, runs inside every tokens()."""

    def __init__(self, reaction: Callable[["RecordingSink"], None] | None = None) -> None:
        self.token_ids: list[int] = []
        self.entries: list[TokenLogprob] = []
        self.end: FinishReason | GatewayError | None = None
        self.call: Call | None = None
        self.breaches: list[str] = []
        self._is_cancelled = False
        self._reaction = reaction

    def cancel(self) -> None:
        """Cancel the call; from now on every call of the sink is a breach."""
        assert self.call is not None
        self._is_cancelled = True
        self.call.cancel()

    def tokens(self, token_ids: Sequence[int]) -> None:
        self._check("tokens")
        if not token_ids or not all(type(token_id) is int for token_id in token_ids):
            self.breaches.append(f"tokens({token_ids!r})")
        self.token_ids.extend(token_ids)
        if self._reaction is not None:
            self._reaction(self)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        self._check("scores")
        self.entries.extend(entries)

    def finish(self, reason: FinishReason) -> None:
        self._check("finish")
        self.end = reason

    def fail(self, error: GatewayError) -> None:
        self._check("fail")
        self.end = error

    async def received(self, count: int) -> None:
        await settled(lambda: len(self.token_ids) >= count, f"{count} tokens received")

    async def ended(self) -> FinishReason | GatewayError:
        await settled(lambda: self.end is not None, "an end")
        assert self.end is not None
        return self.end

    def _check(self, method: str) -> None:
        if self.call is None:
            self.breaches.append(f"{method} from inside start()")
        if self._is_cancelled:
            self.breaches.append(f"{method} after cancel()")
        if self.end is not None:
            self.breaches.append(f"{method} after the end")
