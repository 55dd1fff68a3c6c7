"""Slows down the time that a Python process lives in: its clocks go slower, and its pauses last longer.

In: SLOW_MOTION, how many times. Python imports this at its start where the folder is on PYTHONPATH. A gateway beside
slow engines so plans as it would beside fast ones. Timers of the event loop stay as they are: timeouts and probes.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SCALE = float(os.environ["SLOW_MOTION"])  # noqa: TID251 - it has no other input


def _slow(clock: Callable[[], float]) -> Callable[[], float]:
    return lambda: clock() / SCALE


_sleep = asyncio.sleep


async def _sleep_longer(delay: float, result: T = None) -> T:  # type: ignore[assignment]  # as asyncio.sleep has it
    return await _sleep(delay * SCALE, result)


time.monotonic = _slow(time.monotonic)
time.perf_counter = _slow(time.perf_counter)
asyncio.sleep = _sleep_longer
