"""How a fake engine answers a request: steps that mean the same on Triton's wire and on vLLM's."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Say:
    """Emit these ids, in one message."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Pause:
    seconds: float

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the caller leaves."""

    async def wait(self) -> None:
        await asyncio.Event().wait()


@dataclass(frozen=True)
class EndToken:
    """The model emits its end token: vLLM returns it, Triton does not."""


@dataclass(frozen=True)
class StopWord:
    """The last id was a stop word."""


@dataclass(frozen=True)
class Held(Pause):
    """Say nothing more until the test lets go."""

    seconds: float = 0.0
    may_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        await self.may_go.wait()


@dataclass(frozen=True)
class Full:
    """max_tokens are reached."""


@dataclass(frozen=True)
class Fault:
    """An engine's own error; `kind` is one of "busy", "too long", "bad guide", "broken", and of Triton "unfollowed"."""

    kind: str


@dataclass(frozen=True)
class Hush:
    """End the stream properly, without a reason."""


@dataclass(frozen=True)
class GrpcStatus:
    """End the call with this status, 1 to 16; Triton alone."""

    code: int


Step: TypeAlias = Say | Pause | Stall | EndToken | StopWord | Full | Fault | Hush | GrpcStatus


@dataclass(frozen=True)
class Asked:
    """A request as the engine got it: its prompt, its end token if any, and the wire's own form of everything."""

    prompt: tuple[int, ...]
    end_id: int | None
    raw: Mapping[str, object]


Script: TypeAlias = Callable[[Asked], Sequence[Step]]


class FakeEngine:
    """What both fakes record: the requests, how many answers are under way, how many callers left."""

    def __init__(self) -> None:
        self.port = 0
        self.script: Script = lambda _: [Say((1,)), EndToken()]
        self.asked: list[Asked] = []
        self.running = 0
        self.left = 0
        self.answers_probes = True

    def play(self, *steps: Step) -> None:
        """Answer every request with these steps."""
        self.script = lambda _: steps
