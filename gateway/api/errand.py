"""What both lanes' requests have in common on their way by plain calls: being awaited, tried again and given up.

Knows neither lane.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gateway.api.errors import OUR_FAULT, InternalError
from gateway.api.reply import OnEnd, Reply

logger = logging.getLogger(__name__)


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


def start_again(errand: Errand, reply: Reply, on_end: OnEnd) -> None:
    """`errand.start()` for a caller that is an engine's connection."""
    try:
        errand.start()
    # Edge: the connection may carry other answers, and a fault of ours must not end them.
    except Exception:
        logger.exception("request %s failed", reply.request_id)
        on_end(InternalError(OUR_FAULT))


def say_nothing(_: Exception | None) -> None:
    """The `on_end` of one that is given up."""
