"""A flood: ten times what both engines can answer, beside requests of high priority and a light client.

In: options. Out: a Result: by round what was answered before and in the flood, how soon, and in how much memory.
"""

import asyncio
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from deploy.embedded import Pace, embedded
from deploy.launch import Launched, launched
from deploy.ports import find_free
from deploy.stacks import MODEL, WEIGHTS
from loadtest.client.connection import clock
from tests.faults.rounds.figures import Bound, Result, find_greatest, find_lower_bound, percentile, ratio
from tests.faults.rounds.load import LEAD_S, Due, Seen, play, play_in_turn, processes, space
from tests.faults.rounds.site import create_key, extend, measure_memory, open_session, use_curve
from tests.system.site import Site, becomes

OPERATOR_KEY = "operator-of-the-flood"
FEWEST_TOKENS, MOST_TOKENS = 16, 112  # of an answer
CALM, FLOOD = 0.9, 10.0  # times capacity
URGENT = 0.2  # of capacity
LIGHT_RATE, LIGHT = 2.0, 0.1  # requests a second of the light client at most, and its part of capacity
FASTEST = 120.0  # answers a second of the pair at its own speed at most
PRIORITY = -4
OBEDIENT_SENT = 45  # clients that obey a refusal at most: no more than can be answered in the time in which they come
OBEDIENT_S = 3.0  # before the flood's end, in which they come
OBEDIENT = 2 / 3  # of them: some are not refused
SETTLES_S = 5.0  # of each phase, which do not count
DRAINS_S = 60.0
SAMPLE_S = 0.5
LEAST_URGENT = 200  # of a round


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    seconds: float
    seed: int
    time_scale: float
    max_in_flight: int
    prompt_tokens: int
    capacity_s: float = 30.0


@dataclass(slots=True)
class Prompts:
    """Bodies whose prompts nobody has sent before. Each word is a token of the reference model."""

    draw: random.Random
    words: Sequence[str]
    overhead: int  # tokens of a prompt besides its words

    def body(self, prompt_tokens: int, **fields: object) -> bytes:
        tokens = self.draw.randint(FEWEST_TOKENS, MOST_TOKENS)
        content = " " + " ".join(self.draw.choices(self.words, k=prompt_tokens - self.overhead))
        length = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        messages = [{"role": "user", "content": content}]
        return json.dumps({"model": MODEL, "messages": messages, "stream": True, **length, **fields}).encode()


@dataclass(frozen=True, slots=True)
class Phase:
    """What the clients of one phase saw, by kind of request."""

    seconds: float
    seen: Mapping[str, Sequence[Seen]]

    @property
    def all(self) -> list[Seen]:
        return [seen for kind in self.seen.values() for seen in kind]

    @property
    def goodput(self) -> float:
        return find_goodput(self.all, min(SETTLES_S, self.seconds / 4), self.seconds)

    @property
    def refused(self) -> list[Seen]:
        """Requests without a whole answer."""
        return [seen for seen in self.all if not seen.is_whole or seen.back_at is not None]

    def p95(self, kind: str) -> float | None:
        """Of times to first tokens; a request that was not answered took for ever."""
        return percentile((math.inf if seen.ttft_s is None else seen.ttft_s for seen in self.seen[kind]), 0.95)


@dataclass(frozen=True, slots=True)
class Round:
    calm: Phase
    flood: Phase
    megabytes: float
    left: int  # in flight or waiting, long after

    @property
    def obedience_s(self) -> list[float | None]:
        """Of each client that obeyed, the seconds to the end of its answer from when it was told to come back, or from
        the flood's end where that is later; None where it was not answered.
        """
        obeyed = [seen for seen in self.flood.seen["obedient"] if seen.back_at is not None]
        return [find_delay(seen, self.flood.seconds) for seen in obeyed]

    @property
    def obedient(self) -> float:
        return ratio(len(self.obedience_s), len(self.flood.seen["obedient"])) or 0.0

    def row(self, number: int) -> tuple[object, ...]:
        calm, flood = self.calm, self.flood
        p95s = [phase.p95(kind) for kind in ("urgent", "light") for phase in (calm, flood)]
        return (number, calm.goodput, flood.goodput, *p95s, len(flood.refused), self.megabytes, self.left)


COLUMNS = (
    *("round", "answers/s", "in flood", "urgent p95 s", "in flood", "light p95 s", "in flood"),
    *("refused", "MB at most", "left"),
)


def find_goodput(seen: Sequence[Seen], begins: float, ends: float) -> float:
    """Returns the whole answers a second that ended in between."""
    ended = [one for one in seen if one.is_whole and one.ended_at is not None and begins <= one.ended_at < ends]
    return len(ended) / (ends - begins)


def find_delay(seen: Seen, flood_ends: float) -> float | None:
    if not seen.is_whole or seen.ended_at is None or seen.back_at is None:
        return None
    return seen.ended_at - max(seen.back_at, flood_ends)


def judge(rounds: Sequence[Round]) -> list[Bound]:
    shares = [ratio(each.flood.goodput, each.calm.goodput) or 0.0 for each in rounds]
    refused = [seen for each in rounds for seen in each.flood.refused]
    unlike = [seen for seen in refused if seen.back_at is None and not seen.is_refused_well]
    delays = [delay for each in rounds for delay in each.obedience_s]
    growth = [each.megabytes / rounds[0].megabytes for each in rounds[1:]]

    def slower(kind: str) -> float | None:
        return find_greatest(ratio(each.flood.p95(kind), each.calm.p95(kind)) for each in rounds)

    return [
        Bound("answers a second in the flood over before, mean", statistics.fmean(shares), least=0.95),
        Bound("the same, lower end of the 95 % interval", find_lower_bound(shares), least=0.92),
        Bound("urgent p95 of first tokens over before, worst round", slower("urgent"), most=2.0),
        Bound("urgent requests of a round", min(len(each.flood.seen["urgent"]) for each in rounds), least=LEAST_URGENT),
        Bound("light p95 of first tokens over before, worst round", slower("light"), most=1.5),
        Bound("refused in the flood, without 429 or 503 and retry-after", len(unlike), most=0),
        Bound("clients that obeyed, of those that came", min(each.obedient for each in rounds), least=OBEDIENT),
        Bound("their answer after they were to come back, s, slowest", find_greatest(delays), most=5.0),
        Bound("memory of later floods over the first one's", find_greatest(growth), most=1.05),
        Bound("in flight or waiting afterwards", max(each.left for each in rounds), most=0),
    ]


async def measure(options: Options, folder: Path) -> Result:
    pace = Pace(options.time_scale, (FEWEST_TOKENS + MOST_TOKENS) // 2, "spec-plain")
    backend = {"max_in_flight": options.max_in_flight}
    stack = extend(embedded(pace, folder / "gpus"), {"workers": 2}, backend)
    environment = {"CROSSOVER_OPERATOR_KEY": OPERATOR_KEY}
    with launched(stack, find_free(1)[0], folder, lambda *_: None, environment) as running:
        async with open_session(OPERATOR_KEY) as session:
            stand = Site(running, session)
            await use_curve(stand, pace, is_shared=True)
            return await _Flood(options, stand, await find_prompts(stand, options.seed)).measure()


async def find_prompts(site: Site, seed: int) -> Prompts:
    """Finds words of which each is a token of the reference model, and how many tokens a prompt has besides."""
    vocabulary = json.loads((WEIGHTS / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(
        token[1:] for token in vocabulary if token[0] == "\u0120" and token.isalpha() and token[1:].isascii()
    )
    (few, many) = [
        (await site.ask_whole(1, prompt=" " + " ".join((words * 9)[:length])))["usage"]["prompt_tokens"]
        for length in (1, 1 + len(words))
    ]
    assert many - few == len(words), "each word is one token"
    return Prompts(random.Random(seed), words, few - 1)


class _Flood:
    def __init__(self, options: Options, site: Site, prompts: Prompts) -> None:
        self._options = options
        self._site = site
        self._running: Launched = site.stack
        self._keys = {name: create_key(self._running, name) for name in ("flood", "light")}
        self._body = partial(prompts.body, options.prompt_tokens)

    async def measure(self) -> Result:
        capacity = await self._measure_capacity()
        result, rounds = Result(COLUMNS), list[Round]()
        for number in range(self._options.rounds):
            rounds.append(await self._measure_round(capacity))
            result.rows.append(rounds[-1].row(number + 1))
        late = percentile((seen.late_s for each in rounds for seen in each.flood.all), 0.99)
        result.bounds = judge(rounds)
        result.rows.append((f"capacity {capacity:.1f}/s; clients late p99 {1e3 * (late or 0):.1f} ms", *[""] * 9))
        result.raw = {"capacity": capacity, "rounds": [_describe(each) for each in rounds]}
        return result

    async def _measure_capacity(self) -> float:
        """In a closed loop that fills both engines."""
        seconds, clients = self._options.capacity_s, 2 * self._options.max_in_flight + 8
        count = int(seconds * FASTEST / self._options.time_scale) + clients
        requests = [self._ask(0.0, "full") for _ in range(count)]
        with processes(1) as pool:
            running = pool.submit(play_in_turn, self._site.url, requests, clock() + LEAD_S, clients, seconds)
            seen = await asyncio.wrap_future(running)
        return find_goodput(seen, seconds / 3, seconds)

    async def _measure_round(self, capacity: float) -> Round:
        rest = CALM - URGENT - min(LIGHT_RATE / capacity, LIGHT)
        calm, _, _ = await self._play(capacity, rest, 0)
        obedient = max(min(OBEDIENT_SENT, int(capacity * OBEDIENT_S)), 1)
        flood, megabytes, left = await self._play(capacity, FLOOD, obedient)
        return Round(calm, flood, megabytes, left)

    async def _play(self, capacity: float, rest: float, obedient: int) -> tuple[Phase, float, int]:
        """`rest`: of capacity, what comes beside the urgent and the light requests."""
        beside = sorted(self._list_beside(capacity, obedient), key=lambda due: due.at)
        rest_of_them = [self._ask(at, "rest") for at in self._arrivals(rest * capacity)]
        schedules = (rest_of_them, beside)
        with processes(len(schedules)) as pool:
            began_at = clock() + LEAD_S
            playing = [pool.submit(play, self._site.url, schedule, began_at) for schedule in schedules]
            megabytes = measure_memory(self._running)
            while not all(each.done() for each in playing):
                await asyncio.sleep(SAMPLE_S)
                megabytes = max(megabytes, measure_memory(self._running))
            seen = [one for each in playing for one in each.result()]
        kinds = ("rest", "urgent", "light", "obedient")
        by_kind = {kind: [one for one in seen if one.kind == kind] for kind in kinds}
        return Phase(self._options.seconds, by_kind), megabytes, await self._settle()

    def _list_beside(self, capacity: float, obedient: int) -> Iterator[Due]:
        seconds = self._options.seconds
        for at in space(URGENT * capacity, seconds):
            yield self._ask(at, "urgent", priority=PRIORITY)
        for at in space(min(LIGHT_RATE, LIGHT * capacity), seconds):
            yield self._ask(at, "light", key="light")
        for number in range(obedient):
            at = seconds - OBEDIENT_S * (1 - number / obedient)
            yield replace(self._ask(at, "obedient"), obeys=True)

    def _ask(self, at: float, kind: str, key: str = "flood", **fields: object) -> Due:
        return Due(at, kind, self._body(**fields), key=self._keys[key])

    def _arrivals(self, rate: float) -> Iterator[float]:
        """Poisson arrivals."""
        draw, at = random.Random(self._options.seed), 0.0
        while (at := at + draw.expovariate(rate)) < self._options.seconds:
            yield at

    async def _settle(self) -> int:
        """Returns what is in flight or waits, once that is nothing or does not become it."""

        async def left() -> int:
            waiting: int = (await self._site.state())["waiting"]
            return waiting + await self._site.in_flight()

        try:
            await becomes(left, 0, DRAINS_S)
        except AssertionError:
            return await left()
        return 0


def _describe(each: Round) -> dict[str, Any]:  # Any: JSON
    def list_seen(phase: Phase) -> list[dict[str, Any]]:  # Any: JSON
        return [{key: value for key, value in asdict(seen).items() if key != "tail"} for seen in phase.all]

    return {
        "calm": list_seen(each.calm),
        "flood": list_seen(each.flood),
        "megabytes": each.megabytes,
        "left": each.left,
    }
