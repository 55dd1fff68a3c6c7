"""An engine is killed, or stopped for a while, under 100 streams and 100 whole answers.

In: options. Out: a Result: by fault and engine what failed, and for how long answers paused that went on elsewhere.
"""

import asyncio
import itertools
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from deploy.embedded import Pace, embedded
from deploy.launch import launched
from deploy.ports import find_free
from tests.faults.rounds.figures import Bound, Result, percentile
from tests.faults.rounds.site import open_session, use_curve
from tests.faults.stand import ENGINES, find_engine
from tests.system.site import Site, StreamedAnswer, becomes, kill

REQUESTS = 100  # streams, and as many whole answers
SEEDED_EVERY = 5
GREEDY: Mapping[str, Any] = {"temperature": 0}  # Any: by name
SEEDED: Mapping[str, Any] = {"temperature": 1, "seed": 7}  # may not move once it has begun
PROMPTS = ("Tell me a story.", "What is the capital of France?", "Count to ten.", "Hello", "Who are you?")
FAULTS: Mapping[str, signal.Signals] = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
BEGINS_WITHIN_S, BACK_WITHIN_S, REST_S = 60.0, 60.0, 1.0
MOST_S = 2.0  # of a pause, on top of a fresh prompt's time


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    time_scale: float
    tokens: int
    stopped_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """All rounds of one fault of one engine. `fixed`: begun streams that may not move, by how they ended."""

    fault: str
    engine: str
    failed: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    fresh_s: list[float] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.fault} of {self.engine}"

    @property
    def pause_s(self) -> float | None:
        return percentile(self.pauses_s, 0.99)

    @property
    def bound_s(self) -> float | None:
        fresh_s = percentile(self.fresh_s, 0.99)
        return None if fresh_s is None else MOST_S + fresh_s

    def judge(self) -> list[Bound]:
        pause = Bound(f"{self.name}: pause, p99 s", self.pause_s, most=self.bound_s)
        return [Bound(f"{self.name}: failed or doubled", len(self.failed), most=0), pause]

    def describe(self, rounds: int) -> tuple[object, ...]:
        moved = 2 * REQUESTS * rounds - len(self.fixed)
        whole = self.fixed.count("whole")
        return (
            *(self.name, rounds, moved, len(self.failed), self.pause_s, max(self.pauses_s, default=None)),
            *(self.bound_s, whole, len(self.fixed) - whole),
        )


COLUMNS = (
    *("fault", "rounds", "may move", "failed", "pause p99 s", "most s", "bound s"),
    *("fixed: whole", "ended"),
)


def find_pause(times: Sequence[float], lost_at: float) -> float | None:
    """Returns the longest time without a token that ended after the loss; None if no token came after it."""
    return max((b - a for a, b in itertools.pairwise(times) if b > lost_at), default=None)


def find_fault(answer: StreamedAnswer, tokens: int, text: str) -> str | None:
    """Returns what is wrong with a stream: each token must have come, and once."""
    if not answer.is_whole:
        return f"status {answer.status}, error {answer.error}, done {answer.is_done}"
    if answer.completion_tokens != tokens or answer.text != text:
        return f"{answer.completion_tokens} tokens, {len(answer.text)} characters of {len(text)}"
    return None


async def measure(options: Options, folder: Path) -> Result:
    pace = Pace(options.time_scale, options.tokens, "spec-plain")
    rows = [Row(fault, engine) for fault in FAULTS for engine in ENGINES]
    with launched(embedded(pace, folder / "gpus"), find_free(1)[0], folder, lambda *_: None) as running:
        async with open_session() as session:
            site = Site(running, session)
            await use_curve(site, pace, is_shared=True)
            texts = {prompt: (await site.ask(options.tokens, prompt=prompt, **GREEDY)).text for prompt in PROMPTS}
            for number, row in itertools.product(range(options.rounds), rows):
                row.fresh_s.extend(await ask_at_once(site, f"{number} {row.name}"))
                await _Round(options, site, texts, row).run()
    result = Result(COLUMNS, [row.describe(options.rounds) for row in rows])
    result.bounds = [bound for row in rows for bound in row.judge()]
    result.raw = {row.name: asdict(row) for row in rows}
    return result


async def ask_at_once(site: Site, name: str) -> list[float]:
    """Returns the times to first tokens of so many fresh prompts, which `name` makes others than before."""
    answers = [StreamedAnswer() for _ in range(REQUESTS)]
    async with asyncio.TaskGroup() as group:
        for number, answer in enumerate(answers):
            group.create_task(site.ask(2, answer, prompt=f"{number} {name}", **GREEDY))
    return [answer.times[1] - answer.times[0] for answer in answers]


class _Round:
    """One fault of one engine, under 200 requests that are all there when it comes."""

    def __init__(self, options: Options, site: Site, texts: Mapping[str, str], row: Row) -> None:
        self._options = options
        self._site = site
        self._texts = texts
        self._row = row
        asked = [SEEDED if number % SEEDED_EVERY == 0 else GREEDY for number in range(REQUESTS)]
        self._asked = list(zip(asked, itertools.cycle(PROMPTS), strict=False))
        self._streams = [StreamedAnswer() for _ in self._asked]

    async def run(self) -> None:
        (other,) = set(ENGINES) - {self._row.engine}
        await self._site.drain(other, is_draining=True)
        async with asyncio.TaskGroup() as group:
            plain = [group.create_task(self._ask_whole(how, prompt)) for how, prompt in self._asked]
            for stream, (how, prompt) in zip(self._streams, self._asked, strict=True):
                group.create_task(self._ask(stream, how, prompt))
            async with asyncio.timeout(BEGINS_WITHIN_S):
                for stream in self._streams:
                    await stream.began.wait()
            assert await self._site.in_flight() == 2 * REQUESTS, "answers end before the fault: raise --tokens"
            await self._site.drain(other, is_draining=False)
            lost_at = asyncio.get_running_loop().time()
            await self._break()
        self._count_streams(lost_at)
        self._row.failed.extend(task.result() for task in plain if task.result())
        await self._recover()

    async def _ask(self, stream: StreamedAnswer, how: Mapping[str, Any], prompt: str) -> None:
        try:
            await self._site.ask(self._options.tokens, stream, prompt=prompt, **how)
        except aiohttp.ClientError as exc:
            stream.error = {"message": repr(exc)}
        stream.began.set()

    async def _ask_whole(self, how: Mapping[str, Any], prompt: str) -> str:
        """Returns what is wrong with the answer; nothing if it is right."""
        try:
            answer = await self._site.ask_whole(self._options.tokens, prompt=prompt, **how)
        except (aiohttp.ClientError, AssertionError) as exc:
            return repr(exc)
        count, text = answer["usage"]["completion_tokens"], answer["choices"][0]["message"]["content"]
        is_right = count == self._options.tokens and (how is SEEDED or text == self._texts[prompt])
        return "" if is_right else f"{count} tokens, {len(text)} characters"

    async def _break(self) -> None:
        kill(self._site.stack, self._row.engine, FAULTS[self._row.fault])
        if FAULTS[self._row.fault] is signal.SIGSTOP:
            await asyncio.sleep(self._options.stopped_s)
            kill(self._site.stack, self._row.engine, signal.SIGCONT)

    def _count_streams(self, lost_at: float) -> None:
        for stream, (how, prompt) in zip(self._streams, self._asked, strict=True):
            if how is SEEDED:
                self._row.fixed.append("whole" if stream.is_whole else str((stream.error or {}).get("code")))
                continue
            if (fault := find_fault(stream, self._options.tokens, self._texts[prompt])) is not None:
                self._row.failed.append(fault)
            if (pause := find_pause(stream.times, lost_at)) is not None:
                self._row.pauses_s.append(pause)

    async def _recover(self) -> None:
        """Until the engine is used again, and nothing is in flight."""
        supervisor = self._site.stack.supervisor
        if FAULTS[self._row.fault] is signal.SIGKILL:
            supervisor.start(find_engine(self._site, self._row.engine))

        async with asyncio.timeout(BACK_WITHIN_S):
            while not await self._is_back():
                await self._site.ask(1)  # an ejected engine is tried with requests
                await asyncio.sleep(0.1)
        await becomes(self._site.in_flight, 0, BACK_WITHIN_S)
        await asyncio.sleep(REST_S)

    async def _is_back(self) -> bool:
        backend = (await self._site.state())["backends"][self._row.engine]
        return bool(backend["ready"] and not backend["ejected"])
