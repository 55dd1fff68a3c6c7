"""Guides are tried before an engine gets them: in a process beside the gateway, because some end the one that tries.

In: a request with a guide. Out: nothing, or InvalidRequest that names its field. Knows no grammar library.
"""

import os
import select
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import orjson

from gateway.api.offload import Offload
from gateway.core import GenerateRequest, Guide, GuideKind, Need
from gateway.errors import InvalidRequest

PROGRAM = Path(__file__).parents[1] / "language" / "guides.py"
START_S = 20.0
TRY_S = 2.0  # 300 properties take 13 ms, the largest grammar that llguidance allows 0.5 s
MOST_WAITING = 1024  # requests that are being read anyway; an honest guide takes about a millisecond
MOST_KNOWN = 4096  # verdicts of at most 200 characters
TOO_LARGE = "it takes too much time or memory to prepare"


class GuideChecks:
    """Belongs to one event loop; its process starts with the first guide and ends with the gateway's.

    Clients send few guides many times, so verdicts are kept, by digest; the oldest goes first.
    """

    def __init__(self) -> None:
        self._trial = Trial()
        self._line = Offload(threads=1, most_waiting=MOST_WAITING)
        self._known: dict[bytes, str] = {}

    async def check(self, request: GenerateRequest, has_left: Callable[[], bool]) -> None:
        """Raises InvalidRequest for a guide that no answer can be held to, Overloaded.

        `has_left`: whether the client has; asked on the thread when it is this guide's turn, which is then passed on.
        """
        guide = request.params.guide
        if guide is None or guide.kind is GuideKind.JSON:
            return
        key = _digest(guide)
        fault = self._known.get(key)
        if fault is None:
            fault = await self._line.run(self._find_fault, key, guide, has_left)
        if fault:
            field = request.needs[Need.GUIDE]
            raise InvalidRequest(f"'{field}' asks for a form that no answer can be held to: {fault}.", param=field)

    def _find_fault(self, key: bytes, guide: Guide, has_left: Callable[[], bool]) -> str:
        """On the thread. Of requests that came with the same new guide at once, the first has it tried."""
        fault = self._known.get(key)
        if fault is not None:
            return fault
        if has_left():
            return ""
        fault = self._trial.find_fault(guide)
        if fault is None:
            return TOO_LARGE  # not kept: another time the machine may be less busy
        if len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = fault
        return fault


class Trial:
    """The process. What it is asked it answers in time, or it is ended and the next question starts another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def find_fault(self, guide: Guide) -> str | None:
        """None when it got no answer. Blocks. Raises RuntimeError, OSError when there can be no process."""
        process = self._running()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(orjson.dumps((guide.kind, guide.text)) + b"\n")
            process.stdin.flush()
            if line := _read(process, TRY_S):
                fault: str = orjson.loads(line)
                return fault
        self._end()
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        # By its path, past gateway.language: what that imports takes seconds. -P: its neighbours are no libraries.
        self._process = subprocess.Popen(
            [sys.executable, "-P", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = weakref.finalize(self, _end, self._process)
        if not _read(self._process, START_S):
            self._end()
            raise RuntimeError(f"{PROGRAM} does not start")
        return self._process


def _digest(guide: Guide) -> bytes:
    return blake2b(f"{guide.kind} {guide.text}".encode(), digest_size=16).digest()


def _read(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """An answer, which is shorter than what a pipe takes at once; nothing when it has ended or is late."""
    assert process.stdout is not None
    answers = select.poll()  # not select.select: a busy gateway's descriptors are beyond what that takes
    answers.register(process.stdout, select.POLLIN)
    return os.read(process.stdout.fileno(), select.PIPE_BUF) if answers.poll(timeout_s * 1000) else b""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # of what it was sent and has not read
        pass
