"""Work that takes milliseconds, such as reading a long prompt, done on a few threads off the event loop.

In: a function. Out: its result. How much runs and how much waits is bounded, and shared fairly among clients. Knows no
prompts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gateway.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")

UNIT_BYTES = 256 * 1024
LONG_UNITS = 4  # 1 MiB: more text than most contexts hold, and half a second of work
SITE_BITS = 64  # of an IPv6 address: a client owns every address with the same beginning


class Share(NamedTuple):
    """A client's address, or "" without one, and how many units of work this is for it, at least 1."""

    client: str
    units: int = 1


def count_units(size: int) -> int:
    """Returns the units of a body of `size` bytes."""
    return max(1, size // UNIT_BYTES)


def _find_site(client: str) -> str:
    if ":" not in client:
        return client
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> (address.max_prefixlen - SITE_BITS):x}::"


@dataclass(slots=True, eq=False)
class _Job:
    """`flow`: whose work it is, and how long about."""

    flow: tuple[str, int]
    units: int
    work: Callable[[], Any]  # of the type that `run` returns
    done: asyncio.Future[Any]

    @property
    def is_long(self) -> bool:
        return self.units >= LONG_UNITS


class Offload:
    """Runs work on threads for one event loop; the threads start with the first work and end with the process.

    It is fair by start times (P. Goyal, H. Vin, H. Cheng: Start-time Fair Queueing, SIGCOMM 1996): the flow that has
    had the fewest units goes first. A flow is a client's work of one length, to a power of two: behind a proxy all
    clients have one address, and there too a short prompt does not wait for every long one. Long work leaves one thread
    free, for it cannot be interrupted.
    """

    def __init__(self, threads: int = 2, max_waiting: int = 32) -> None:
        """`max_waiting` is in units."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="offload")
        self._threads = threads
        self._max_waiting = max_waiting
        self._waiting: list[_Job] = []  # in order of arrival
        self._working: list[_Job] = []  # those whose caller has left included
        self._served: dict[tuple[str, int], int] = {}  # units that each flow with jobs has had, or has let pass
        self._least_served = 0  # of the flow that was chosen last, before

    def __repr__(self) -> str:
        return f"<Offload {self.working} working, {self.waiting} waiting>"

    @property
    def working(self) -> int:
        """How many threads are working."""
        return len(self._working)

    @property
    def waiting(self) -> int:
        """How many units wait."""
        return sum(job.units for job in self._waiting)

    async def run(self, share: Share, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of `work`, or raises its error.

        Raises Overloaded, at once or later, when too much waits and most of it is this flow's. Within a flow jobs run
        in order of arrival. A caller that is cancelled while its job waits frees the arguments; later the work runs on
        for nobody, because a thread cannot be stopped, and counts until it is done.
        """
        flow = _find_site(share.client), share.units.bit_length()
        job = _Job(flow, share.units, partial(work, *args, **kwargs), asyncio.get_running_loop().create_future())
        self._join(job)
        try:
            result: T = await job.done
            return result
        finally:
            if job in self._waiting:
                self._waiting.remove(job)
                self._forget(flow)
            del job  # an error's traceback refers to this frame, and the job to the error: a cycle

    def _join(self, job: _Job) -> None:
        if not any(other.flow == job.flow for other in self._waiting):  # no credit for the time without jobs
            self._served[job.flow] = max(self._served.get(job.flow, 0), self._least_served)
        self._waiting.append(job)
        self._begin()
        while self.waiting > self._max_waiting:
            units = Counter[tuple[str, int]]()
            for each in self._waiting:
                units[each.flow] += each.units
            most = max(units, key=units.__getitem__)
            newest = next(each for each in reversed(self._waiting) if each.flow == most)
            self._waiting.remove(newest)
            self._forget(most)
            if not newest.done.done():
                reason = "Too many requests are waiting to be read; try again in a moment."
                newest.done.set_exception(Overloaded(reason))

    def _begin(self) -> None:
        """Start as many jobs as there are free threads."""
        while (job := self._choose()) is not None:
            self._waiting.remove(job)
            self._working.append(job)
            self._least_served = max(self._least_served, self._served[job.flow])
            self._served[job.flow] += job.units
            self._pool.submit(job.work).add_done_callback(partial(self._report, asyncio.get_running_loop(), job))

    def _choose(self) -> _Job | None:
        if self.working == self._threads:
            return None
        takes_long = sum(job.is_long for job in self._working) < max(1, self._threads - 1)
        able = [job for job in self._waiting if takes_long or not job.is_long]
        return min(able, key=lambda job: self._served[job.flow], default=None)

    def _report(self, loop: asyncio.AbstractEventLoop, job: _Job, ended: Future[Any]) -> None:
        """Passes a job's end to the loop; runs on the thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(self._end, job, ended)

    def _end(self, job: _Job, ended: Future[Any]) -> None:
        self._working.remove(job)
        self._forget(job.flow)
        self._begin()
        if job.done.done():  # its caller has left
            return
        if (error := ended.exception()) is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ended.result())

    def _forget(self, flow: tuple[str, int]) -> None:
        """Drops what a flow has had once it has no jobs; else every address ever seen would be remembered."""
        if not any(job.flow == flow for job in (*self._waiting, *self._working)):
            del self._served[flow]
