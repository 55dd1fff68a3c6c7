"""Looking on while something is measured. In: what is measured, and who looks. Out: what was measured."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TypeVar

from loadtest.streams import find_cause

Measured = TypeVar("Measured")


async def beside(measuring: Awaitable[Measured], looking: Coroutine[None, None, None]) -> Measured:
    """What `measuring` returns; `looking` ends with it. Raises what either raises."""
    try:
        async with asyncio.TaskGroup() as group:
            onlooker = group.create_task(looking)
            measured = await measuring
            onlooker.cancel()
    except ExceptionGroup as failure:
        raise find_cause(failure) from failure
    return measured
