"""The course of a rehearsal: each trace on either engine alone and under each policy, one after the other, in turns.

In: a gateway, traces, policies. Out: one Serving for each trace, repeat and arm, on disk as soon as it ends. A trace is
served again until it is decided; by which rule, this module does not know.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from loadtest.admin import Routing, count_moves, read_routing, restore_policy, set_policy
from loadtest.client.answer_gate import AnswerGate
from loadtest.client.connection import clock
from loadtest.client.errors import Unreachable, first_cause
from loadtest.client.open_loop import OpenLoop
from loadtest.client.probe import PromptLengths, probe_lengths
from loadtest.client.sender import Sender
from loadtest.client.target import Target
from loadtest.rehearsal.find_trace import list_due
from loadtest.rehearsal.traces import TraceRequest
from loadtest.results.system import Json, SystemUnderTest

RUN = "rehearse"  # tags what is pinned, which then does not steer
SAMPLES = 150  # of where requests are, in one serving
LEAST_SAMPLE_S = 0.1
LIVE = "live"
LEAST_REPEATS = 2  # fewer do not show how much whole runs scatter


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve a trace: pinned to `backend`, or under a policy. `policy`: None for the one in force."""

    name: str
    backend: str = ""
    policy: Json | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What was in flight on the low and on the high backend `at` so many seconds after the beginning, and the backend
    that the policy's plan sent requests to; empty where that is not known.
    """

    at: float
    low: int
    high: int
    side: str = ""


@dataclass(frozen=True, slots=True)
class Serving:
    """One trace, served once in one way. Times in seconds, by request in the trace's order; `lag_s`: sent late by."""

    trace: str
    repeat: int
    arm: str
    due_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    lag_s: tuple[float, ...]
    switches: int
    moves: int
    samples: tuple[Sample, ...]


_SERVINGS = TypeAdapter(Serving)


def slug(name: str) -> str:
    """Makes a part of a file's name of the name of a trace, or of an arm."""
    return "".join(char if char.isalnum() else "-" for char in name).strip("-")


def name_file(trace: str, repeat: int, arm: str) -> str:
    return f"{slug(trace)}_{slug(arm)}_{repeat}.json"


@dataclass(slots=True)
class Rehearsal:
    """One rehearsal. `folder` keeps servings; what is there is not repeated.

    Each trace is served in each way until `is_decided` by its servings, at most `repeats` times; after `budget_s`
    seconds no further repeat begins.
    """

    target: Target
    system: SystemUnderTest
    sender: Sender
    traces: Mapping[str, Sequence[TraceRequest]]
    arms: Sequence[Arm]
    repeats: int
    folder: Path
    prompts: PromptLengths
    is_decided: Callable[[Sequence[Serving]], bool] = lambda _: False
    budget_s: float = math.inf
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    async def run(self) -> Sequence[Serving]:
        """Returns all servings. Raises MeasurementError; whatever happens, the policy before is back."""
        try:
            return await self._serve_all()
        finally:
            if any(arm.policy is not None for arm in self.arms):
                with suppress(Unreachable):  # the gateway may be what failed
                    await restore_policy(self.target, self.system)

    async def _serve_all(self) -> Sequence[Serving]:
        """Serves in turns: in each repeat another arm is the first on every trace that is not yet decided."""
        servings: dict[str, list[Serving]] = {trace: [] for trace in self.traces}
        open_traces, began_at = list(servings), clock()
        for repeat in range(self.repeats):
            turn = repeat % len(self.arms)
            for trace in open_traces:
                for arm in (*self.arms[turn:], *self.arms[:turn]):
                    servings[trace].append(await self._serve(trace, repeat, arm))
            if repeat + 1 >= LEAST_REPEATS:
                open_traces = [trace for trace in open_traces if not self.is_decided(servings[trace])]
                if clock() - began_at > self.budget_s:
                    break
        return [serving for own in servings.values() for serving in own]

    async def _serve(self, trace: str, repeat: int, arm: Arm) -> Serving:
        path = self.folder / name_file(trace, repeat, arm.name)
        if path.exists():
            return _read(path)
        if arm.policy is not None:
            await set_policy(self.target, self.system, arm.policy)
        serving = await self._measure(trace, repeat, arm)
        partial = path.with_suffix(".partial")
        partial.write_bytes(orjson.dumps(serving))
        partial.replace(path)
        return serving

    async def _measure(self, trace: str, repeat: int, arm: Arm) -> Serving:
        requests = self.traces[trace]
        sender = replace(self.sender, run=RUN if arm.backend else "", seed=secrets.randbits(32))
        # What one engine alone can serve goes there whoever serves the rest; untagged, so that the policy counts it.
        only = {"": None, "low": self.system.low, "high": self.system.high}
        due = list_due(requests, self.prompts, only)
        loop = OpenLoop(sender, AnswerGate(), arm.backend, next(self._numbers))
        before, moved = await read_routing(self.target, self.system), await count_moves(self.target, self.system)
        samples: list[tuple[float, Routing]] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(samples, max(requests[-1].at / SAMPLES, LEAST_SAMPLE_S)))
                began_at, answers = await loop.run(due)
                watch.cancel()
        except ExceptionGroup as failed:
            raise first_cause(failed) from failed
        after, moves = await read_routing(self.target, self.system), await count_moves(self.target, self.system)
        return Serving(
            trace=trace,
            repeat=repeat,
            arm=arm.name,
            due_s=tuple(_round((answer.due_at or 0.0) - began_at) for answer in answers),
            e2e_s=tuple(_round(answer.e2e_s) for answer in answers),
            ttft_s=tuple(_round(answer.ttft_s) for answer in answers),
            lag_s=tuple(_round(answer.started_at - (answer.due_at or 0.0)) for answer in answers),
            switches=after.switches - before.switches,
            moves=moves - moved,
            samples=tuple(self._make_sample(at - began_at, routing) for at, routing in samples),
        )

    async def _watch(self, samples: list[tuple[float, Routing]], pause_s: float) -> None:
        while True:
            samples.append((clock(), await read_routing(self.target, self.system)))
            await asyncio.sleep(pause_s)

    def _make_sample(self, at: float, routing: Routing) -> Sample:
        low, high = (routing.in_flight[name] for name in self.system.backends)
        return Sample(round(at, 3), low, high, routing.side)


def name_alone(backend: str) -> str:
    return f"{backend} alone"


async def warm_up(sender: Sender, system: SystemUnderTest, tokens: int) -> tuple[Sender, PromptLengths]:
    """Sends each backend a request. Returns the sender to use, and how long its prompts are."""
    return await probe_lengths(replace(sender, run=RUN), AnswerGate(), system.backends, tokens)


def _round(seconds: float | None) -> float:
    assert seconds is not None  # the gate lets only complete answers through
    return round(seconds, 6)


def _read(path: Path) -> Serving:
    try:
        return _SERVINGS.validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise Unreachable(f"{path} holds no serving of this version's: {exc}") from exc


def make_arms(system: SystemUnderTest, policies: Sequence[str], node: Json | None) -> Sequence[Arm]:
    """Makes both engines alone, and each policy: a kind and its keys, as in "threshold up=70 down=52".

    Without policies the one in force is tried. Raises ValueError that names a key which is none.
    """
    alone = [Arm(name_alone(name), name) for name in system.backends]
    routed = [Arm(text, policy=_parse_policy(text, node)) for text in policies] or [Arm(LIVE)]
    return [*alone, *routed]


def _parse_policy(text: str, node: Json | None) -> Json:
    kind, *terms = text.split()
    keys: dict[str, object] = {"kind": kind}
    if node is not None and kind == "curve":
        keys["node"] = node
    for term in terms:
        key, equals, value = term.partition("=")
        if not equals:
            raise ValueError(f"{term!r} in {text!r}: must be key=value")
        try:
            keys[key] = orjson.loads(value)
        except orjson.JSONDecodeError:
            keys[key] = value
    return keys
