"""The process that `crossover serve` is: keeps the listening socket, and replaces one generation of workers by another.

In: the options of the command, SIGHUP. Out: generations as processes, each a fresh interpreter, and an exit code. It
reads no configuration and imports little, so that it need not be replaced itself.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeAlias

from gateway.commands.process import MOST_BYTES, send_signal, start
from gateway.restarts import Board, Restart

logger = logging.getLogger(__name__)

Json: TypeAlias = Mapping[str, Any]  # Any: what another process says, of another version perhaps
STARTS_WITHIN_S = 180.0
REPLIES_WITHIN_S = 10.0
KILL_AFTER_S = 15  # beyond the drain time; a generation has killed its workers by then
MOST_FDS = 3  # with a message


class Generation:
    """One generation, as this process knows it. `number`: its place among all."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, leash: socket.socket) -> None:
        self.number = number
        self.process = process
        self.places: object = {}  # where its map counts what it has in flight
        self.map_fd = -1
        self._leash = leash
        self._reading = asyncio.Lock()

    @classmethod
    async def start(cls, order: Json, fds: tuple[int, ...]) -> Self:
        """Starts the process. It gets `fds` under the numbers that they have here, and the end of a leash."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with its:
            orders = json.dumps({**order, "leash": its.fileno()}).encode()
            process = await start("gateway.commands.generation", orders, (*fds, its.fileno()))
        return cls(order["number"], process, ours)

    def send(self, message: Json) -> None:
        with suppress(OSError):  # it has ended, which its process will show
            self._leash.send(json.dumps(message).encode())

    async def receive(self) -> tuple[Json, list[int]]:
        """Returns its next message, with descriptors; an empty one if it has ended."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        async with self._reading:
            if self._leash.fileno() < 0:
                return {}, []
            loop.add_reader(self._leash, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._leash)
            try:
                data, fds, *_ = socket.recv_fds(self._leash, MOST_BYTES, MOST_FDS)
            except ConnectionResetError:
                return {}, []
            return json.loads(data or "{}"), fds

    async def ask(self, message: Json) -> Json:
        self.send(message)
        async with asyncio.timeout(REPLIES_WITHIN_S):
            reply, _ = await self.receive()
        return reply

    async def close(self) -> None:
        async with self._reading:  # of its last words, which whoever waits for them gets first
            self._leash.close()
        if self.map_fd >= 0:
            os.close(self.map_fd)


class Generations:
    """All generations that live: one serves, others drain. `options`: those of the command, for each of them."""

    def __init__(self, options: Json, announce: Callable[[str], object]) -> None:
        self._options = options
        self._announce = announce
        self._board = Board.create()
        self._living: dict[int, Generation] = {}
        self._current: Generation | None = None
        self._started = 0
        self._listener: int | None = None
        self._lock: int | None = None
        self._fixed: object = None  # what no restart can change
        self._is_ending = False
        self._code = 0
        self._woken = asyncio.Event()

    async def run(self) -> int:
        """Keeps the gateway until a signal ends it, or its generation ends by itself. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._woken.set)
        async with asyncio.TaskGroup() as self._tasks:
            await self._begin()
            while not self._is_ending and self._current is not None:
                await self._woken.wait()
                self._woken.clear()
                if not self._is_ending:
                    await self._restart()
        return self._code

    async def _begin(self) -> None:
        first = await self._start({})
        message, fds = await first.receive()
        if "url" not in message:
            code = await first.process.wait()
            self._code = 0 if self._is_ending else max(code, 1)
            return
        self._listener, *lock = fds[1:]
        self._lock = lock[0] if lock else None
        self._fixed = message["fixed"]
        self._adopt(first, message, fds[0])
        self._post()
        self._announce(message["url"])

    async def _start(self, drained: Json) -> Generation:
        self._started += 1
        predecessors = [
            {"number": each.number, "map": each.map_fd, "places": each.places}
            for each in self._living.values()
            if each.map_fd >= 0
        ]
        order = {
            **self._options,
            "number": self._started,
            "board": self._board.fd,
            "listener": self._listener,
            "fixed": self._fixed,
            "drained": drained,
            "predecessors": predecessors,
        }
        listener = () if self._listener is None else (self._listener,)
        fds = (self._board.fd, *listener, *(each["map"] for each in predecessors))
        generation = await Generation.start(order, fds)
        self._living[generation.number] = generation
        for each in predecessors:
            if each["number"] not in self._living:  # it ended while this one was being started
                generation.send({"ended": each["number"]})
        self._tasks.create_task(self._accompany(generation))
        if self._is_ending:  # the signal came while it was being started
            generation.process.terminate()
        return generation

    async def _accompany(self, generation: Generation) -> None:
        code = await generation.process.wait()
        del self._living[generation.number]
        await generation.close()
        for other in self._living.values():
            other.send({"ended": generation.number})
        if generation is self._current and not self._is_ending:
            logger.error("generation %d ended by itself, with code %d; the gateway ends", generation.number, code)
            self._code = 1
            self._end(signal.SIGTERM)

    async def _restart(self) -> None:
        """Puts a new generation in the place of the one that serves; if it does not become ready, nothing changes."""
        standing = self._board.read()
        self._post(begun=standing.begun + 1)
        number, why = self._started + 1, None
        try:
            await self._replace()
        except (RestartFailed, OSError) as exc:
            why = str(exc)
        except TimeoutError:
            why = "it was not ready in time"
        if why is None:
            logger.info("generation %d serves", number)
        else:
            logger.error("generation %d failed, nothing has changed: %s", number, why)
        self._post(ended=standing.ended + 1, last=Restart(number, time.time(), why))

    async def _replace(self) -> None:
        """Raises RestartFailed, OSError and TimeoutError."""
        old = self._current
        assert old is not None  # nothing is restarted before it is up
        try:
            drained = (await old.ask({"retire": False})).get("drained", {})
        except TimeoutError as exc:
            raise RestartFailed("the supervisor of the generation that serves does not answer") from exc
        new = await self._start(drained)
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                message, fds = await new.receive()
        except TimeoutError:
            new.process.terminate()
            raise
        if "url" not in message:
            raise RestartFailed(message.get("failed", "it ended before it was ready; the log has the cause"))
        self._adopt(new, message, fds[0])
        with suppress(TimeoutError):  # one that hangs cannot hinder its successor
            new.send({"drained": (await old.ask({"retire": True})).get("drained", drained)})

    def _adopt(self, generation: Generation, message: Json, map_fd: int) -> None:
        generation.places, generation.map_fd = message["places"], map_fd
        self._current = generation

    def _post(self, **changes: Any) -> None:  # Any: fields of a Standing
        """Notes how it stands, for all processes, and in the lock file for `crossover restart`."""
        number = 1 if self._current is None else self._current.number
        standing = replace(self._board.read(), generation=number, **changes)
        self._board.write(standing)
        if self._lock is not None:
            with suppress(OSError):  # a disk that is full
                os.pwrite(self._lock, standing.encode(), 0)

    def _end(self, number: signal.Signals) -> None:
        """Passes a signal on. After the first one, no connection is accepted any more, and none refused to another."""
        send_signal((generation.process for generation in self._living.values()), number)
        if self._is_ending:
            return
        self._is_ending = True
        self._woken.set()
        for fd in (self._listener, self._lock):  # another gateway may begin now, while answers here end
            if fd is not None:
                os.close(fd)
        self._listener = self._lock = None
        asyncio.get_running_loop().call_later(self._options["drain_timeout_s"] + KILL_AFTER_S, self._kill)

    def _kill(self) -> None:
        for generation in self._living.values():
            logger.error("generation %d (pid %d) did not end; killed", generation.number, generation.process.pid)
            send_signal([generation.process], signal.SIGKILL)


class RestartFailed(Exception):
    """The new generation has not become ready, for the reason that this says."""
