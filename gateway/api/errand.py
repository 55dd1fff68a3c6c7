"""A request on its way by plain calls, for a caller that has a task and wants to await its end.

In: how to make one, told whom to tell of its end. Knows neither lane.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.api.reply import OnEnd


class Errand(Protocol):
    """Goes its way from `start` to one word to its `on_end`."""

    def start(self) -> None: ...

    def cancel(self) -> None:
        """Give it up without another word to anyone."""
        ...


async def await_end(make: Callable[[OnEnd], Errand]) -> None:
    """Returns when it is complete, raises what it ends with; cancelled, gives it up."""
    end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    errand = make(end.set_result)
    errand.start()
    try:
        error = await end
    except asyncio.CancelledError:
        errand.cancel()
        raise
    if error is not None:
        raise error


def say_nothing(_: Exception | None) -> None:
    """The `on_end` of one that is given up."""
