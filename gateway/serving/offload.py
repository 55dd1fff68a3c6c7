"""Work that takes milliseconds, such as reading a long prompt, done on a few threads off the event loop.

In: a function. Out: its result. How much runs and how much waits is bounded, and shared fairly among clients. Knows no
prompts.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

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


Key: TypeAlias = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Job:
    flow: Key
    units: int
    work: Callable[[], Any]  # of the type that `run` returns
    done: asyncio.Future[Any]

    @property
    def is_long(self) -> bool:
        return self.units >= LONG_UNITS


@dataclass(slots=True, eq=False)
class _Flow:
    """One client's jobs of about one length. `served`: units that it has had or let pass; the fewest go first."""

    served: int = 0
    working: int = 0
    units: int = 0
    jobs: deque[_Job] = field(default_factory=deque)


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
        self._flows: dict[Key, _Flow] = {}  # those with jobs
        self._served = 0  # of the flow that was chosen last, before
        self._long = 0
        self.working = 0
        """How many threads are working, those whose caller has left included."""
        self.waiting = 0
        """How many units wait."""

    def __repr__(self) -> str:
        return f"<Offload {self.working} working, {self.waiting} waiting>"

    async def run(self, share: Share, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of `work`, or raises its error.

        Raises Overloaded, at once or later, when too much waits and most of it is this flow's. Within a flow jobs run
        in order of arrival. A caller that is cancelled while its job waits frees the arguments; later the work runs on
        for nobody, because a thread cannot be stopped, and counts until it is done.
        """
        key = _find_site(share.client), share.units.bit_length()
        job = _Job(key, share.units, partial(work, *args, **kwargs), asyncio.get_running_loop().create_future())
        self._join(job)
        try:
            result: T = await job.done
            return result
        finally:
            if key in self._flows and job in self._flows[key].jobs:
                self._take_out(job)
            del job  # an error's traceback refers to this frame, and the job to the error: a cycle

    def _join(self, job: _Job) -> None:
        flow = self._flows.setdefault(job.flow, _Flow())
        if not flow.jobs:
            flow.served = max(flow.served, self._served)  # no credit for the time without jobs
        flow.jobs.append(job)
        flow.units += job.units
        self.waiting += job.units
        self._begin()
        while self.waiting > self._max_waiting:
            newest = max(self._flows.values(), key=lambda flow: flow.units).jobs[-1]
            self._take_out(newest)
            if not newest.done.done():
                reason = "Too many requests are waiting to be read; try again in a moment."
                newest.done.set_exception(Overloaded(reason))

    def _begin(self) -> None:
        """Start as many jobs as there are free threads."""
        while (flow := self._choose()) is not None:
            job = flow.jobs[0]
            flow.working += 1
            self._take_out(job)
            self._served = max(self._served, flow.served)
            flow.served += job.units
            self.working += 1
            self._long += job.is_long
            self._pool.submit(job.work).add_done_callback(partial(self._report, asyncio.get_running_loop(), job))

    def _choose(self) -> _Flow | None:
        if self.working == self._threads:
            return None
        takes_long = self._long < max(1, self._threads - 1)
        able = [flow for flow in self._flows.values() if flow.jobs and (takes_long or not flow.jobs[0].is_long)]
        return min(able, key=lambda flow: flow.served, default=None)

    def _report(self, loop: asyncio.AbstractEventLoop, job: _Job, ended: Future[Any]) -> None:
        """Passes a job's end to the loop; runs on the thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(self._end, job, ended)

    def _end(self, job: _Job, ended: Future[Any]) -> None:
        self.working -= 1
        self._long -= job.is_long
        self._flows[job.flow].working -= 1
        self._forget(job.flow)
        self._begin()
        if job.done.done():  # its caller has left
            return
        if (error := ended.exception()) is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ended.result())

    def _take_out(self, job: _Job) -> None:
        flow = self._flows[job.flow]
        flow.jobs.remove(job)
        flow.units -= job.units
        self.waiting -= job.units
        self._forget(job.flow)

    def _forget(self, key: Key) -> None:
        """Drops a flow that has no jobs; else every address ever seen would be remembered."""
        flow = self._flows[key]
        if not flow.jobs and not flow.working:
            del self._flows[key]
