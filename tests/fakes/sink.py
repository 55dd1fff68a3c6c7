"""A sink that records its calls, and every breach of the contract of core.Sink."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.core import Call, FinishReason, TokenLogprob
from gateway.errors import GatewayError

PATIENCE_S = 20.0  # for a loaded machine; nothing waits that long when all is well


async def settled(is_so: Callable[[], bool], what: str) -> None:
    """Wait until it is so. Raises AssertionError with `what`, in words, if it does not become so."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110 - what is awaited raises no event, it only becomes so
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"still not so: {what}") from None


class RecordingSink:
    """`reaction`, when given, runs inside every tokens()."""

    def __init__(self, reaction: Callable[["RecordingSink"], None] | None = None) -> None:
        self.token_ids: list[int] = []
        self.entries: list[TokenLogprob] = []
        self.end: FinishReason | GatewayError | None = None
        self.call: Call | None = None
        self.breaches: list[str] = []
        self._is_cancelled = False
        self._reaction = reaction

    def cancel(self) -> None:
        """Cancel the call; from now on every call of this sink is a breach."""
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

    async def heard(self, count: int) -> None:
        await settled(lambda: len(self.token_ids) >= count, f"{count} tokens received")

    async def ended(self) -> FinishReason | GatewayError:
        await settled(lambda: self.end is not None, "the end received")
        assert self.end is not None
        return self.end

    def _check(self, name: str) -> None:
        if self.call is None:
            self.breaches.append(f"{name} from inside start()")
        if self._is_cancelled:
            self.breaches.append(f"{name} after cancel()")
        if self.end is not None:
            self.breaches.append(f"{name} after the end")
