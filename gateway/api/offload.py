"""Offload: work that takes milliseconds, such as understanding a long prompt, done on a few threads off the event loop.

A function goes in, its result comes out. What is worked on at once and what waits are bounded. Knows no prompts.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from gateway.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class Offload:
    """Belongs to one event loop; threads start with the first work and end with the process."""

    def __init__(self, threads: int = 2, most_waiting: int = 32) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="offload")
        self._free = asyncio.Semaphore(threads)
        self._most_waiting = most_waiting
        self.working = 0
        """How many threads work now, those whose caller has left included."""
        self.waiting = 0

    def __repr__(self) -> str:
        return f"<Offload {self.working} working, {self.waiting} waiting>"

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises Overloaded at once when too many wait, and whatever `work` raises.

        First come, first served. A caller that is cancelled while it waits takes its arguments with it; later, the work
        is finished for nobody, because a thread cannot be stopped, and counts until it is.
        """
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise Overloaded("Too many requests are waiting to be read; try again in a moment.")
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        # No await from here to the callback: the place is the thread's to give back, whoever still waits for it.
        self.working += 1
        started = self._pool.submit(work, *args, **kwargs)
        started.add_done_callback(self._give_back_on(asyncio.get_running_loop()))
        return await asyncio.wrap_future(started)

    def _give_back_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[Future[T]], None]:
        def give_back(_: Future[T]) -> None:  # on the thread, or on the loop if the work had not begun
            with suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(self._give_back)

        return give_back

    def _give_back(self) -> None:
        self.working -= 1
        self._free.release()
