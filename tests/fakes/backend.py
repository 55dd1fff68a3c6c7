"""A core.Backend that plays a script for every call: for tests of the rooms above the wires.

It keeps the adapters' contract (tests/backends): plain calls from the event loop, one end, silence after a cancel.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.core import NO_CACHE_USE, FinishReason, GenerateRequest, Need, Sink, TokenLogprob
from gateway.errors import GatewayError
from gateway.settings import BackendSettings, TritonSettings


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing for so long; without a time until the call's `go_on`."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of the tokens in the next step, or of the prompt."""

    entries: Sequence[TokenLogprob]


Step: TypeAlias = Sequence[int] | Scores | Pause | FinishReason | GatewayError
Script: TypeAlias = Sequence[Step]

# Scripts answer every need but one: they take no client's own body.
ALL_BUT_RELAY = frozenset(Need) - {Need.RELAY}


@dataclass(eq=False)
class ScriptedCall:
    """One generation under way; `steps` are played one per turn of the event loop."""

    request: GenerateRequest
    sink: Sink
    steps: list[Step]
    is_over: bool = False
    was_cancelled: bool = False
    _timer: asyncio.Handle | None = field(default=None, repr=False)

    def cancel(self) -> None:
        if not self.is_over:
            self.is_over = self.was_cancelled = True
            if self._timer is not None:
                self._timer.cancel()

    def go_on(self, seconds: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._play) if seconds else loop.call_soon(self._play)

    def _play(self) -> None:
        self._timer = None  # it holds us
        if self.is_over:
            return
        step = self.steps.pop(0) if self.steps else Pause()
        match step:
            case Pause(seconds):
                if seconds is not None:
                    self.go_on(seconds)
            case Scores(entries):
                self.sink.scores(entries)
                self.go_on()
            case FinishReason():
                self.is_over = True
                self.sink.finish(step)
            case GatewayError():
                self.is_over = True
                self.sink.fail(step)
            case _:
                self.sink.tokens(step)
                self.go_on()


class ScriptedBackend:
    """Plays `script`, or `script(request)`, for every call; `calls` holds them all."""

    def __init__(self, name: str, script: Script | Callable[[GenerateRequest], Script] = ()) -> None:
        self.name = name
        self.cache_use = NO_CACHE_USE
        self.script = script
        self.capabilities = ALL_BUT_RELAY
        self.ready = True
        self.probes = self.renewed = 0
        self.calls: list[ScriptedCall] = []

    def __repr__(self) -> str:
        return f"<ScriptedBackend {self.name} calls={len(self.calls)} live={len(self.live)}>"

    @property
    def live(self) -> list[ScriptedCall]:
        return [call for call in self.calls if not call.is_over]

    def start(self, request: GenerateRequest, sink: Sink) -> ScriptedCall:
        script = self.script(request) if callable(self.script) else self.script
        call = ScriptedCall(request, sink, list(script))
        self.calls.append(call)
        call.go_on()
        return call

    def renew(self) -> None:
        self.renewed += 1

    async def is_ready(self) -> bool:
        self.probes += 1
        return self.ready

    async def aclose(self) -> None:
        for call in self.live:
            call.cancel()


def described(names: Iterable[str]) -> dict[str, BackendSettings]:
    """Settings for scripted backends of these names."""
    return {name: TritonSettings(name, "grpc://unused:1") for name in names}
