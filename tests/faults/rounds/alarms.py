"""False alarms: what looks like a stuck engine and is none must eject nothing and move nothing.

In: options. Out: a Result: by scene how often an engine was ejected or lost an answer. The node model is the engines'
own, and they have GPUs of their own: then `curve` itself moves nothing, and every move is an alarm.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from deploy.cpu import cpu
from deploy.embedded import Pace, embedded
from deploy.launch import LOGS, launched
from deploy.ports import find_free
from deploy.stacks import GATEWAY
from tests.fakes.h2 import DATA, HEADERS
from tests.faults.proxy import Fault, Link
from tests.faults.rounds.figures import Bound, Result
from tests.faults.rounds.site import count_errors, open_session, use_curve
from tests.faults.stand import ENGINES, Broken, Stand, broken
from tests.system.site import Site, StreamedAnswer, becomes

STREAMS = 50
LONG_WORDS = 8150  # of a prompt, each a token: with the template's nearly all of the context of 8,192
SILENT_S, AFTER_S = 2.0, 1.0
BEGUN_FRAMES = 3  # of an answer on Triton's wire
DEFAULT_IDLE_S = 120.0
BEGINS_WITHIN_S, ENDS_WITHIN_S = 30.0, 60.0
EVERY_S, LIGHT_TOKENS = 0.5, 64  # of light load: a request so often
COMPILER = """
import os, pathlib
while True:
    for file in pathlib.Path(os.__file__).parent.glob("*.py"):
        compile(file.read_bytes(), str(file), "exec")
"""


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    time_scale: float
    tokens: int
    seconds: float


@dataclass(slots=True)
class Row:
    """All rounds of a scene. `lost`: attempts that ended with an engine's error. `longest_s`: a stream's longest pause;
    `heard_s`: the same of the stream that paused least.
    """

    name: str
    rounds: int = 0
    answers: int = 0
    failed: int = 0
    ejected: int = 0
    lost: float = 0.0
    moved: float = 0.0
    longest_s: float = 0.0
    heard_s: float = 0.0

    def count(self, streams: list[StreamedAnswer], more: list[StreamedAnswer]) -> None:
        self.rounds += 1
        self.answers += len(streams) + len(more)
        self.failed += sum(not answer.is_whole for answer in (*streams, *more))
        pauses = [max((b - a for a, b in pairwise(stream.times[1:])), default=0.0) for stream in streams]
        self.longest_s, self.heard_s = max(self.longest_s, *pauses), max(self.heard_s, min(pauses))

    def judge(self) -> list[Bound]:
        counts = {"ejections": self.ejected, "moves and lost attempts": self.moved + self.lost, "failed": self.failed}
        return [Bound(f"{self.name}: {what}", count, most=0) for what, count in counts.items()]


COLUMNS = ("scene", "rounds", "answers", "failed", "ejected", "lost", "moved", "longest pause s", "least silent s")


class HalfSilent(Fault):
    """Holds back every second begun answer for a while, and loses nothing: an HTTP/1.1 connection carries one answer, a
    stream of HTTP/2 another.
    """

    def __init__(self, *, is_grpc: bool) -> None:
        super().__init__()
        self._is_grpc = is_grpc
        self._until = 0.0
        self._numbers: dict[Link, int] = {}
        self._frames: defaultdict[tuple[Link, int], int] = defaultdict(int)
        self._held: dict[tuple[Link, int], bytes] = {}

    def hush(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    async def answer(self, link: Link, data: bytes) -> None:
        if self._is_grpc:
            data = self._pass_frames(link, data)
        elif link.generates and self._numbers.setdefault(link, len(self._numbers)) % 2:
            await asyncio.sleep(self._until - time.monotonic())
        await super().answer(link, data)

    def _pass_frames(self, link: Link, data: bytes) -> bytes:
        """Returns the frames that pass now, first those that were held for long enough."""
        passing = b""
        if time.monotonic() >= self._until:
            passing = b"".join(self._held.pop(key) for key in list(self._held) if key[0] is link)
        link.pending += data
        while len(link.pending) >= 9 and len(link.pending) >= (end := 9 + int.from_bytes(link.pending[:3], "big")):
            frame, link.pending = link.pending[:end], link.pending[end:]
            passing += self._pass_frame(link, frame)
        return passing

    def _pass_frame(self, link: Link, frame: bytes) -> bytes:
        kind, stream = frame[3], int.from_bytes(frame[5:9], "big")
        key = (link, stream)
        self._frames[key] += kind == DATA
        is_chosen = stream // 2 % 2 == 1 and self._frames[key] > BEGUN_FRAMES
        if kind == DATA and is_chosen and time.monotonic() < self._until:
            self.harmed += 1
            self._held[key] = self._held.get(key, b"") + frame
            return b""
        return self._held.pop(key, b"") + frame if kind == HEADERS else frame


async def measure(options: Options, folder: Path) -> Result:
    """Of the embedded pair."""
    pace = Pace(options.time_scale, options.tokens, "spec-plain")
    rows = []
    with broken(embedded(pace), folder, idle_timeout_s=DEFAULT_IDLE_S) as running:
        async with open_session() as session:
            stand = Stand(running, session)
            await use_curve(stand, pace, is_shared=False)
            with half_silent(running) as faults:
                for engine in ENGINES:
                    rows.append(await _repeat(f"a long prompt, {engine}", options, stand, _long_prompt, engine))
                    hush = faults[engine].hush
                    rows.append(await _repeat(f"half silent, {engine}", options, stand, _half_silent(hush), engine))
    return conclude(rows)


def conclude(rows: list[Row]) -> Result:
    result = Result(COLUMNS, [tuple(asdict(row).values()) for row in rows])
    result.bounds = [bound for row in rows for bound in row.judge()]
    result.raw = {row.name: asdict(row) for row in rows}
    return result


@contextmanager
def half_silent(running: Broken) -> Iterator[Mapping[str, HalfSilent]]:
    """Put while nothing is under way: a fault that comes between the halves of a frame could not read any."""
    faults = {name: HalfSilent(is_grpc=name == "triton") for name in ENGINES}
    with ExitStack() as exits:
        for name, fault in faults.items():
            exits.enter_context(running.proxies.broken(name, fault))
        yield faults


Scene = Callable[[Stand, str], Awaitable[list[StreamedAnswer]]]


async def _repeat(name: str, options: Options, stand: Stand, scene: Scene, engine: str) -> Row:
    row = Row(name)
    for _ in range(options.rounds):
        async with _counted(stand, row), asyncio.TaskGroup() as group:
            answers = await _begin(stand, group, engine, options.tokens)
            more = await scene(stand, engine)
        row.count(answers, more)
        await becomes(stand.in_flight, 0, ENDS_WITHIN_S)
    return row


@asynccontextmanager
async def _counted(site: Site, row: Row) -> AsyncIterator[None]:
    """Adds to the row what the gateway has ejected and moved within the block."""

    async def count() -> tuple[int, float, float]:
        log = (site.stack.run_dir / LOGS / f"{GATEWAY}.log").read_text(errors="replace")
        return log.count("is ejected"), await count_errors(site), await site.count_moves()

    before = await count()
    yield
    ejected, lost, moved = (after - earlier for after, earlier in zip(await count(), before, strict=True))
    row.ejected, row.lost, row.moved = row.ejected + int(ejected), row.lost + lost, row.moved + moved


async def _begin(stand: Stand, group: asyncio.TaskGroup, engine: str, tokens: int) -> list[StreamedAnswer]:
    """Returns when all streams have begun there. The other engine is used then: without one nothing is ejected."""
    (other,) = set(ENGINES) - {engine}
    await stand.drain(other, is_draining=True)
    answers = [StreamedAnswer() for _ in range(STREAMS)]
    for answer in answers:
        group.create_task(stand.ask(tokens, answer))
    async with asyncio.timeout(BEGINS_WITHIN_S):
        for answer in answers:
            await answer.began.wait()
    await stand.drain(other, is_draining=False)
    return answers


async def _long_prompt(stand: Stand, engine: str) -> list[StreamedAnswer]:
    number = time.monotonic_ns() % 1_000_000  # another prompt each time: engines have prefix caches
    return [await stand.ask(4, pin=engine, prompt=f"{number}" + " house" * LONG_WORDS)]


def _half_silent(hush: Callable[[float], None]) -> Scene:
    async def scene(stand: Stand, engine: str) -> list[StreamedAnswer]:
        hush(SILENT_S)
        await asyncio.sleep(SILENT_S + AFTER_S)
        return []

    return scene


async def measure_real(options: Options, folder: Path) -> Result:
    """Light load on a real Triton and a real vLLM, half of it on each, beside a compiler on every core."""
    row = Row("light load beside compilers, real engines")
    with launched(cpu(folder / LOGS), find_free(1)[0], folder, lambda *_: None) as running:
        async with open_session() as session:
            site = Site(running, session)
            await set_share(site)
            await asyncio.gather(*(site.ask(LIGHT_TOKENS, pin=engine) for engine in ENGINES))  # both are warm
            answers = [StreamedAnswer() for _ in range(int(options.seconds / EVERY_S))]
            with compiling():
                async with _counted(site, row), asyncio.TaskGroup() as group:
                    for number, answer in enumerate(answers):
                        group.create_task(site.ask(LIGHT_TOKENS, answer, prompt=f"Tell me story {number}."))
                        await asyncio.sleep(EVERY_S)
            row.count(answers, [])
    return conclude([row])


async def set_share(site: Site) -> None:
    """There is no node model of engines that are as fast as the machine: a policy that moves nothing by itself."""
    policy = {"kind": "share", "low": "triton", "high": "vllm", "share": 0.5}
    async with site.session.put(f"{site.url}/admin/policy", json=policy) as response:
        assert response.status == 200, await response.text()


@contextmanager
def compiling() -> Iterator[None]:
    """On every core, inside the block."""
    compilers = [subprocess.Popen([sys.executable, "-c", COMPILER]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for compiler in compilers:
            compiler.kill()
            compiler.wait()
