"""Tries guides before an engine gets them, in a process beside the gateway: some crash the process that compiles them.

In: a request with a guide. Out: nothing, or InvalidRequest that names the field. Knows no grammar library.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, cast

import orjson

from gateway.client_http import ClientLeft
from gateway.core import GenerateRequest, Guide, GuideKind, Need
from gateway.errors import InvalidRequest
from gateway.serving.offload import LONG_UNITS, Offload, Share

PROGRAM = Path(__file__).parents[1] / "language" / "guide_validator.py"
START_S = 10.0
QUICK_S = 0.05  # 300 properties take 13 ms; where a busy machine needs more, the guide is tried once more
TRY_S = 2.0  # the largest grammar that llguidance allows takes 0.5 s
GRACE_S = 1.0  # for the process to report that a guide has had its time
KEPT_S = 60.0  # how long "too large" is believed: the machine may have been busy
MAX_WAITING = 1024  # their requests have been read already
MAX_KNOWN = 4096  # verdicts of at most 200 characters
TOO_LARGE = "it takes too much time or memory to prepare"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A trial's result. `fault`: empty for a guide that can be followed. `until`: expiry on time.monotonic's clock."""

    fault: str
    until: float = float("inf")


class GuideChecks:
    """Checks guides for one event loop; its processes start with the first guides and end with the gateway's process.

    Clients send few guides many times, so verdicts are kept, by digest; the oldest goes first. A guide that is being
    tried is not tried twice: further requests with it wait for the verdict. Each guide gets QUICK_S at first; one that
    needs more joins a second queue, tried one at a time, so that the guides behind it need not wait.
    """

    def __init__(self) -> None:
        self._line = Offload(threads=2, max_waiting=MAX_WAITING)
        self._idle = [Trial(), Trial()]  # one for each thread
        self._known: dict[bytes, Verdict] = {}
        self._tried: dict[bytes, asyncio.Event] = {}

    async def check(self, request: GenerateRequest, client: str, has_left: Callable[[], bool]) -> None:
        """Raises InvalidRequest for a guide that no answer can be held to, Overloaded, ClientLeft.

        `client`: its address, by which the queue is shared. `has_left`: returns whether the client has left; called on
        a thread when it is this guide's turn.
        """
        guide = request.params.guide
        if guide is None or guide.kind is GuideKind.JSON:
            return
        key = _digest(guide)
        while (verdict := self._known.get(key)) is None or verdict.until < time.monotonic():
            if (others := self._tried.get(key)) is not None:
                await others.wait()  # and check again: without a verdict where that client left
            else:
                await self._learn(key, client, partial(self._find_fault, guide, has_left))
        if verdict.fault:
            field = request.needs[Need.GUIDE]
            reason = f"'{field}' asks for a form that no answer can be held to: {verdict.fault}."
            raise InvalidRequest(reason, param=field)

    async def _learn(self, key: bytes, client: str, find_fault: Callable[[float], str | None]) -> None:
        self._tried[key] = asyncio.Event()
        try:
            fault = await self._line.run(Share(client), find_fault, QUICK_S)
            if fault is None:
                fault = await self._line.run(Share(client, LONG_UNITS), find_fault, TRY_S)
        finally:
            self._tried.pop(key).set()
        self._known.pop(key, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = Verdict(TOO_LARGE, time.monotonic() + KEPT_S) if fault is None else Verdict(fault)

    def _find_fault(self, guide: Guide, has_left: Callable[[], bool], limit_s: float) -> str | None:
        """Runs on a thread. Returns the guide's fault, or None if there was no verdict in time."""
        if has_left():
            raise ClientLeft
        trial = self._idle.pop()
        try:
            return trial.find_fault(guide, limit_s)
        finally:
            self._idle.append(trial)


class Trial:
    """A process that tries guides. One that reports no verdict in time is killed; the next guide starts another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket
        self._answers: BinaryIO
        self._number = 0
        self._end: Callable[[], object] = lambda: None

    def find_fault(self, guide: Guide, limit_s: float) -> str | None:
        """Returns the guide's fault; None without a verdict in time. Blocks at most START_S + limit_s + 2 * GRACE_S.

        That time includes the process's start. Raises RuntimeError, OSError when there can be no process.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        self._number += 1
        with suppress(OSError):
            self._line.settimeout(GRACE_S)  # a process that does not read would block this thread for good
            self._line.sendall(orjson.dumps((self._number, guide.kind, guide.text, limit_s)) + b"\n")
            self._line.settimeout(limit_s + GRACE_S)
            while answer := self._answers.readline():
                number, fault = orjson.loads(answer)
                if number in {None, self._number}:  # another number: the verdict on a guide before, late
                    return cast("str | None", fault)
        self._end()
        return None

    def _start(self) -> None:
        self._end()
        self._line, its = socket.socketpair()
        # By its path, past gateway.language, whose imports take seconds. -P: its folder holds no libraries.
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", PROGRAM],
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=subprocess.DEVNULL,
                process_group=0,  # with the one that it forks
            )
        self._answers = self._line.makefile("rb")
        self._end = weakref.finalize(self, _end, self._process, self._line, self._answers)
        self._line.settimeout(START_S)
        with suppress(OSError):
            if self._answers.readline():
                return
        self._end()
        raise RuntimeError(f"{PROGRAM} does not start")


def _digest(guide: Guide) -> bytes:
    return blake2b(f"{guide.kind} {guide.text}".encode(), digest_size=16).digest()


def _end(process: subprocess.Popen[bytes], line: socket.socket, answers: BinaryIO) -> None:
    if process.poll() is None:  # else its number may be another's; what it forked ends with the line
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    answers.close()
    line.close()
