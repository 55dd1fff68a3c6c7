"""Requests that are sent when they are due, from a process of their own, and what became of each.

In: a schedule. Out: what was seen. Answers are only timed, not read: a client that parses could be the bottleneck.
"""

import asyncio
import itertools
import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import uvloop

from loadtest.client.connection import Connection, ConnectionLost, clock
from loadtest.client.errors import Unreachable
from loadtest.client.target import Target

LEAD_S = 3.0  # in which a schedule reaches its process
PATIENCE_S = 120.0
DONE = b"data: [DONE]"
TRIES = 10  # of a client that is refused and told when to come back
REFUSALS = (429, 503)


@dataclass(frozen=True, slots=True)
class Due:
    """A request, due `at` so many seconds after the beginning. `obeys`: it is sent again when a refusal says so."""

    at: float
    kind: str
    body: bytes = b""
    path: str = "/v1/chat/completions"
    key: str = ""
    obeys: bool = False


@dataclass(slots=True)
class Seen:
    """What became of a request; times in seconds after the beginning of its schedule, but `ttft_s` after it was sent.

    `back_at`: when the first refusal told the client to come back. `is_refused` is of its last try.
    """

    kind: str
    sent_at: float
    late_s: float = 0.0
    status: int = 0  # 0: no answer
    retry_after_s: float | None = None
    ttft_s: float | None = None
    ended_at: float | None = None
    back_at: float | None = None
    tail: bytes = b""

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.ended_at is not None and (not self.tail or DONE in self.tail)

    @property
    def is_refused_well(self) -> bool:
        return self.status in REFUSALS and self.retry_after_s is not None


@dataclass(slots=True)
class Answer:
    """A receiver that fills what was seen."""

    seen: Seen
    began_at: float
    _sent_at: float = 0.0

    def begin(self, at: float) -> None:
        self._sent_at = at
        self.seen.status, self.seen.ttft_s, self.seen.tail = 0, None, b""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.seen.status = status
        after = headers.get("retry-after")
        self.seen.retry_after_s = None if after is None else float(after)

    def body(self, data: bytes, at: float) -> None:
        if self.seen.ttft_s is None and self.seen.status == 200:
            self.seen.ttft_s = at - self._sent_at
        self.seen.tail = (self.seen.tail + data)[-64:]

    def end(self) -> None:
        self.seen.ended_at = clock() - self.began_at


@dataclass(slots=True)
class Player:
    target: Target
    began_at: float
    patience_s: float
    seen: list[Seen] = field(default_factory=list)
    _idle: list[Connection] = field(default_factory=list)

    async def play(self, schedule: Sequence[Due]) -> None:
        async with asyncio.TaskGroup() as group:
            for due in schedule:
                await asyncio.sleep(max(0.0, self.began_at + due.at - clock()))
                group.create_task(self._serve(due))

    async def play_in_turn(self, requests: Iterator[Due], clients: int, ends_at: float) -> None:
        """So many clients, each of which sends the next request when it has its answer, and not before it is due."""

        async def go_on() -> None:
            while clock() - self.began_at < ends_at and (due := next(requests, None)) is not None:
                await asyncio.sleep(max(0.0, self.began_at + due.at - clock()))
                await self._serve(due)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(go_on())

    async def _serve(self, due: Due) -> None:
        now = clock() - self.began_at
        seen = Seen(due.kind, now, now - due.at)
        self.seen.append(seen)
        for _ in range(TRIES if due.obeys else 1):
            await self._send(due, seen)
            if not (due.obeys and seen.is_refused_well):
                return
            wait_s = seen.retry_after_s or 0.0
            seen.back_at = seen.back_at or clock() - self.began_at + wait_s
            await asyncio.sleep(wait_s)

    async def _send(self, due: Due, seen: Seen) -> None:
        headers = {"authorization": f"Bearer {due.key}"} if due.key else {}
        request = self.target.request("POST" if due.body else "GET", due.path, due.body, headers)
        try:
            async with asyncio.timeout(self.patience_s):
                connection = await self._take()
                await connection.exchange(request, Answer(seen, self.began_at))
        except (ConnectionLost, Unreachable, TimeoutError):
            return
        if connection.is_open:
            self._idle.append(connection)

    async def _take(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return await self.target.connect()


def play(url: str, schedule: Sequence[Due], began_at: float, patience_s: float = PATIENCE_S) -> list[Seen]:
    """Sends each request when it is due. In a process of its own."""
    player = Player(Target.parse(url), began_at, patience_s)
    uvloop.run(player.play(schedule))
    return player.seen


def play_in_turn(url: str, requests: Sequence[Due], began_at: float, clients: int, ends_at: float) -> list[Seen]:
    """Sends requests in a closed loop, for so long. In a process of its own."""
    player = Player(Target.parse(url), began_at, PATIENCE_S)
    uvloop.run(player.play_in_turn(iter(requests), clients, ends_at))
    return player.seen


def play_alone(url: str, requests: Sequence[Due], began_at: float, patience_s: float) -> list[Seen]:
    """Sends each request when it is due and the one before has its answer. In a process of its own."""
    player = Player(Target.parse(url), began_at, patience_s)
    uvloop.run(player.play_in_turn(iter(requests), 1, math.inf))
    return player.seen


def processes(count: int) -> ProcessPoolExecutor:
    """Fresh ones: a fork would take this process's event loop and connections along."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def space(rate: float, seconds: float) -> Iterator[float]:
    """Yields moments so far apart, from half a pause on."""
    return itertools.takewhile(lambda at: at < seconds, ((number + 0.5) / rate for number in itertools.count()))
