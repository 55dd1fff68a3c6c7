"""Clients that ask again and again, over all APIs, and what became of each request.

In: a gateway's URL. Out: Outcomes. An answer that ends without its proper end, or not at all, is LOST.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import orjson

from deploy.stacks import MODEL

PATIENCE_S = 60.0  # beyond every time limit of the gateway's
PAUSE_S = 0.05  # of a client that was refused
QUESTION = [{"role": "user", "content": "Tell me a story."}]


class Fate(StrEnum):
    ANSWERED = "answered"
    REFUSED = "refused"  # 429 or 503: nothing was begun
    FAILED = "failed"  # another error status, or an error event
    LOST = "lost"  # an end that is none, a wrong form, or silence


@dataclass(frozen=True, slots=True)
class Ask:
    """A kind of request. `end`: what the last event of a whole stream holds."""

    name: str
    path: str
    body: Mapping[str, object]
    end: tuple[bytes, ...] = (b"data: [DONE]",)
    may_move: bool = True

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


def asks(tokens: int) -> Mapping[str, Ask]:
    """One of each kind. `tokens`: of an answer, at most, and exactly where the API can say so."""
    exact = {"min_tokens": tokens, "ignore_eos": True}
    greedy: dict[str, object] = {"model": MODEL, "temperature": 0}
    kinds: dict[str, tuple[str, dict[str, object], tuple[bytes, ...]]] = {
        "chat": (
            "/v1/chat/completions",
            {**greedy, "messages": QUESTION, "max_tokens": tokens, **exact},
            (b"data: [DONE]",),
        ),
        "completions": (
            "/v1/completions",
            {**greedy, "prompt": "Once upon a time", "max_tokens": tokens, **exact},
            (b"data: [DONE]",),
        ),
        "responses": (
            "/v1/responses",
            {**greedy, "input": "Tell me a story.", "max_output_tokens": tokens, **exact},
            (b'"type":"response.completed"', b'"type":"response.incomplete"'),
        ),
        "messages": (
            "/v1/messages",
            {**greedy, "messages": QUESTION, "max_tokens": tokens},
            (b'"type":"message_stop"',),
        ),
    }
    found = {}
    for (name, (path, body, end)), streams in itertools.product(kinds.items(), (True, False)):
        kind = f"{name} {'stream' if streams else 'plain'}"
        found[kind] = Ask(kind, path, {**body, "stream": streams}, end)
    seeded = {**found["chat stream"].body, "temperature": 1, "seed": 7}
    found["seeded stream"] = Ask("seeded stream", "/v1/chat/completions", seeded, may_move=False)
    return found


@dataclass(slots=True)
class Outcome:
    ask: Ask
    began: float
    ended: float = 0.0
    fate: Fate = Fate.LOST
    status: int = 0
    code: str = ""  # of an error
    backend: str | None = None
    last: bytes = b""  # of what came

    def __repr__(self) -> str:
        return f"<{self.ask.name} {self.fate} {self.status} {self.code} {self.last[-200:]!r}>"


@dataclass
class Traffic:
    """`clients`: the kinds that each client asks, in turn."""

    url: str
    session: aiohttp.ClientSession
    clients: Sequence[Sequence[Ask]]
    outcomes: list[Outcome] = field(default_factory=list)
    is_over: bool = False

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Every client has its last answer when the block is left."""
        async with asyncio.TaskGroup() as group:
            for kinds in self.clients:
                group.create_task(self._go_on(itertools.cycle(kinds)))
            try:
                yield
            finally:
                self.is_over = True

    def since(self, began: float) -> list[Outcome]:
        """Of requests that were sent then or later."""
        return [outcome for outcome in self.outcomes if outcome.began >= began]

    def count(self) -> Counter[str]:
        return Counter(f"{outcome.ask.name}: {outcome.fate} {outcome.code}".strip() for outcome in self.outcomes)

    async def _go_on(self, kinds: Iterator[Ask]) -> None:
        while not self.is_over:
            outcome = await ask(self.session, self.url, next(kinds))
            self.outcomes.append(outcome)
            if outcome.fate is not Fate.ANSWERED:
                await asyncio.sleep(PAUSE_S)


async def ask(session: aiohttp.ClientSession, url: str, kind: Ask) -> Outcome:
    outcome = Outcome(kind, time.monotonic())
    try:
        async with asyncio.timeout(PATIENCE_S), session.post(url + kind.path, json=kind.body) as response:
            outcome.status, outcome.backend = response.status, response.headers.get("x-crossover-backend")
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError) as exc:
        outcome.last = repr(exc).encode()
    else:
        outcome.last = body
        _judge(outcome, body)
    outcome.ended = time.monotonic()
    return outcome


def _judge(outcome: Outcome, body: bytes) -> None:
    if outcome.status != 200:
        outcome.code = _code(orjson.loads(body)["error"])
        outcome.fate = Fate.REFUSED if outcome.status in {429, 503} else Fate.FAILED
    elif not outcome.ask.streams:
        outcome.fate = Fate.LOST if orjson.loads(body).get("error") else Fate.ANSWERED
    elif error := _find_error(body):
        outcome.code, outcome.fate = _code(error), Fate.FAILED
    elif any(end in body for end in outcome.ask.end):
        outcome.fate = Fate.ANSWERED


def _find_error(body: bytes) -> dict[str, Any] | None:  # Any: JSON
    """Of a stream's last events, in the form of any API."""
    for line in body.splitlines():
        if line.startswith(b"data: {") and b"error" in line:
            event = orjson.loads(line[6:])
            found = event.get("error") or (event.get("response") or {}).get("error")
            if found or event.get("type") == "error":
                return dict(found or event)
    return None


def _code(error: dict[str, Any]) -> str:  # Any: JSON
    return str(error.get("code") or error.get("type"))
