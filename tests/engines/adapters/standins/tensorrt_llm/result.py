"""CompletionOutput and RequestOutput: an answer that grows while it is iterated over."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """`token_ids` and `logprobs` are all so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None  # stop, length, timeout or cancelled


Step = tuple[list[int], list[dict[int, Logprob]], str | None]


class RequestOutput:
    """Made within an event loop, or it can only be waited for."""

    def __init__(self, request_id: int, abort: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.outputs = [CompletionOutput()]
        self.finished = False
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[Step | Exception] = asyncio.Queue()

    def put(self, step: Step | Exception) -> None:
        """From the engine's thread."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, step)

    def abort(self) -> None:
        self._abort(self.request_id)

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished:
            raise StopAsyncIteration
        step = await self._steps.get()
        if isinstance(step, Exception):
            raise step
        ids, logprobs, reason = step
        output = self.outputs[0]
        output.token_ids.extend(ids)
        output.logprobs.extend(logprobs)
        output.finish_reason = reason
        self.finished = reason is not None
        return self
