"""Starts one generation's workers, replaces one that dies or hangs, passes signals on, and ends with the last.

In: settings, a bound socket, and the words of the process that started it. Out: an exit code. Answers no request and
loads no model, so that little can kill it.
"""

import asyncio
import json
import logging
import pickle
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gateway.commands.options import RETIRE, Assignment, ServeOptions
from gateway.commands.process import MOST_BYTES, send_signal, start
from gateway.node import Node
from gateway.restarts import Board
from gateway.settings import Settings
from gateway.shared import Predecessor

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0  # before a worker that died is replaced, doubled while they die young
YOUNG_S = 10.0
KILL_AFTER_S = 5  # beyond the time that a worker needs to end by itself
HUNG_AFTER_S = 5.0  # without a beat
INHERIT_S = 0.02  # from one count of what the generations before still have to the next
LOOK_S = 0.25  # from one look at the beats to the next
ASLEEP_S = 1.0  # between two looks: this process was stopped itself, and so may have been its workers


@dataclass(frozen=True, slots=True)
class Origin:
    """What a generation starts from: its socket, its gateway's board, and what the generation before it hands over.

    `predecessors`: by their numbers, the generations that still drain. `drained`: what an operator wants empty.
    """

    listener: socket.socket
    board: Board
    predecessors: dict[int, Predecessor]
    drained: Mapping[str, Collection[str]]


class Supervisor:
    """Keeps all workers running. `leash`: leads to the process that keeps the generations; it says what to do there.

    `announce` is called once, when all workers are ready for the first time.
    """

    def __init__(
        self,
        settings: Settings,
        options: ServeOptions,
        origin: Origin,
        leash: socket.socket,
        announce: Callable[[Node], object],
    ) -> None:
        self._settings = settings
        self._options = options
        self._listener = origin.listener
        self._board = origin.board
        self._predecessors = origin.predecessors
        self._leash = leash
        self._announce = announce
        self._node = Node.create(settings, origin.board)
        self._node.drain(origin.drained)
        self._node.inherit(self._predecessors.values())
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._leashes: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        self._is_up = False
        self._has_failed = False
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Runs all workers. Returns 0 after a signal, 1 if a worker could not start before the gateway was ever up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number)
        loop.add_reader(self._leash, self._obey)
        async with asyncio.TaskGroup() as tasks:
            for index in range(self._settings.workers):
                tasks.create_task(self._keep(index))
            tasks.create_task(self._watch())
            tasks.create_task(self._inherit())
        return int(self._has_failed)

    async def _keep(self, index: int) -> None:
        """Runs one worker after another in the same seat."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while not self._ending.is_set():
            began = loop.time()
            ended = await self._live(index)
            if self._ending.is_set():
                return
            if not self._is_up:  # the cause will not go away, as with a tokenizer that does not load
                logger.error("worker %d %s before the gateway was up", index, ended)
                self._has_failed = True
                report_failure(self._leash, f"worker {index} {ended} before all were ready; the log has the cause")
                self._end(signal.SIGTERM)
                return
            if loop.time() - began > YOUNG_S:
                pause_s = FIRST_PAUSE_S
            logger.error("worker %d %s; its leases are given back, another starts in %.1f s", index, ended, pause_s)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _pause(self, pause_s: float) -> None:
        """Waits, at most until the end begins."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._ending.wait()

    async def _watch(self) -> None:
        """Kills the workers whose event loops no longer run. The monotonic clock stands while the machine sleeps."""
        awake_since = looked = time.monotonic()
        while not self._ending.is_set():
            await self._pause(LOOK_S)
            now = time.monotonic()
            if now - looked > ASLEEP_S:
                awake_since = now
            looked = now
            roster = self._node.roster
            silences = {index: roster.find_silence(index, awake_since) for index in self._ready}
            index = max(silences, key=silences.__getitem__, default=0)
            if silences.get(index, 0.0) > HUNG_AFTER_S:
                process = self._processes[index]
                logger.error("worker %d (pid %d) has hung for %.1f s; killed", index, process.pid, silences[index])
                send_signal([process], signal.SIGKILL)  # a stopped process takes no other
                awake_since = now  # it may have held the lock that the others have been waiting for

    async def _inherit(self) -> None:
        """Counts what the generations before this one have in flight, until they have ended."""
        while self._predecessors and not (self._ending.is_set() and not self._processes):
            await asyncio.sleep(INHERIT_S)
            self._node.inherit(self._predecessors.values())

    def _obey(self) -> None:
        """Does what the process that keeps the generations says; ends when it is gone."""
        try:
            data = self._leash.recv(MOST_BYTES)
        except ConnectionResetError:  # it was killed before it had read all that we sent
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._leash)
            self._end(signal.SIGTERM)
            return
        match json.loads(data):
            case {"ended": int(number)}:
                self._predecessors.pop(number, None)
            case {"drained": drained}:
                self._node.drain(drained)
                self._node.renew_policies()
            case {"retire": bool(is_final)}:
                self._leash.send(json.dumps({"drained": self._node.drained()}).encode())
                if is_final and not self._ending.is_set():
                    for leash in self._leashes.values():
                        with suppress(OSError):  # it has just ended
                            leash.send(RETIRE)
                    self._stop_keeping()

    async def _live(self, index: int) -> str:
        """Runs one worker. Returns how it ended."""
        try:
            ours, its = socket.socketpair()
            with ours:
                with its:
                    process = await self._start(index, its)
                return await self._accompany(index, process, ours)
        except OSError as exc:  # no process or no descriptor is to be had now: tried again, as if it had died
            return f"could not be started: {exc}"

    async def _accompany(self, index: int, process: asyncio.subprocess.Process, leash: socket.socket) -> str:
        self._processes[index], self._leashes[index] = process, leash
        if self._ending.is_set():  # the signal came while it was being started
            process.terminate()
        leash.setblocking(False)
        with suppress(ConnectionResetError):  # it was killed before it had read all that we sent
            if await asyncio.get_running_loop().sock_recv(leash, 64):
                self._ready.add(index)
        if len(self._ready) == self._settings.workers and not self._is_up:
            self._is_up = True
            self._announce(self._node)
        code = await process.wait()
        del self._processes[index], self._leashes[index]
        self._ready.discard(index)
        self._node.clear(index)
        return f"(pid {process.pid}) {_describe(code)}"

    async def _start(self, index: int, leash: socket.socket) -> asyncio.subprocess.Process:
        assert self._node.fd is not None  # a node that was founded for others has one
        fds = (self._node.fd, self._listener.fileno(), leash.fileno(), self._board.fd)
        assignment = Assignment(self._settings, self._options, index, *fds)
        return await start("gateway.commands.worker", pickle.dumps(assignment), fds)

    def _end(self, number: signal.Signals) -> None:
        """Passes a signal on. After the first one, no worker is replaced and workers that end accept no connection."""
        send_signal(self._processes.values(), number)
        if not self._ending.is_set():
            self._stop_keeping()

    def _stop_keeping(self) -> None:
        self._ending.set()
        self._listener.close()
        asyncio.get_running_loop().call_later(self._options.end_timeout_s + KILL_AFTER_S, self._kill)

    def _kill(self) -> None:
        for index, process in self._processes.items():
            logger.error("worker %d (pid %d) did not end; killed", index, process.pid)
        send_signal(self._processes.values(), signal.SIGKILL)


def report_failure(leash: socket.socket, why: str) -> None:
    """Reports why a generation does not start."""
    with suppress(OSError):  # nobody listens any more
        leash.send(json.dumps({"failed": why[: MOST_BYTES // 4]}).encode())


def _describe(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
