"""Arrivals whose rate changes as live traffic does: a ramp, a step, bursts, a day, as variants.

In: how fast the pair of engines is, and a seed. Out: requests in order of arrival. Pure.
"""

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Self, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from engines.physics import EngineModel, Mix
from engines.physics.forecast import find_capacity
from loadtest.decide.open_load import Arrival, serve

LOW, HIGH = 0.04, 0.8  # rates, as parts of the most that the pair completes
MAX_TOKENS = 10_000_000

Rate: TypeAlias = Callable[[float], float]  # by the part of the trace that is over, from 0 to 1
_ENGINES = TypeAdapter(EngineModel)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request that arrives `at` so many seconds after the beginning; lengths in tokens.

    `only`: the one engine that can serve it, "low" or "high"; empty: either. `after`: index in its trace of the request
    whose answer it waits for; it is due `wait_s` after that answer's end, and `at` is when it came where it was
    recorded. `prefix`: ids of its prompt's leading blocks of `block` tokens; where ids begin alike, prompts do.
    """

    at: float
    prompt_tokens: int
    tokens: int
    only: str = ""
    after: int | None = None
    wait_s: float = 0.0
    prefix: tuple[int, ...] = ()
    block: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """What a trace has to know of two engines, and of the requests they get.

    `answer_s`: an answer's time on the better of both while nothing else runs. `answers_per_s`: the most that the
    better one completes. `prompt_tokens`, `tokens`: the usual lengths.
    """

    answer_s: float
    answers_per_s: float
    prompt_tokens: int
    tokens: int

    @classmethod
    def of(cls, node: Mapping[str, object], prompt_tokens: int, tokens: int) -> Self:
        """Reads it from the JSON of a node model (docs/routing.md). Raises ValueError that names what is wrong."""
        engines, mix = [_read_engine(node, name) for name in ("low", "high")], Mix.of([prompt_tokens], tokens)
        idle = [Arrival(0.0, prompt_tokens, tokens)]
        answer_s = min(serve(engine, idle)[0] for engine in engines)
        return cls(answer_s, max(find_capacity(engine, mix) for engine in engines), prompt_tokens, tokens)


def _read_engine(node: Mapping[str, object], name: str) -> EngineModel:
    try:
        return _ENGINES.validate_python(node.get(name))
    except ValidationError as exc:
        problem = exc.errors()[0]
        where = ".".join(map(str, (name, *problem["loc"])))
        raise ValueError(f"the node model's {where}: {problem['msg']}") from exc


@dataclass(frozen=True, slots=True)
class Trace:
    """A named shape. `length`: in answer times. `make_rate`: returns the rate, between 0 (low) and 1 (high)."""

    length: float
    make_rate: Callable[[random.Random], Rate]


def _ramp(_random: random.Random) -> Rate:
    return lambda part: 1 - abs(2 * part - 1)


def _step(_random: random.Random) -> Rate:
    return lambda part: 1.0 if 1 / 3 <= part < 2 / 3 else 0.0


def _bursts(draw: random.Random) -> Rate:
    """Twice as long quiet as busy, in turns whose lengths are exponential: some twenty turns in a trace."""
    ends: list[float] = [0.0]
    while ends[-1] < 1:
        ends.append(ends[-1] + draw.expovariate(1 / 0.1 if len(ends) % 2 == 1 else 1 / 0.05))
    return lambda part: float(bisect(ends, part) % 2 == 0)


TRACES: Mapping[str, Trace] = {
    "ramp": Trace(35, _ramp),
    "step": Trace(40, _step),
    "bursts": Trace(60, _bursts),
    "day": Trace(200, _ramp),
}


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Variant:
    """A named shape, and what its requests are like.

    `length`: in answer times; None: the shape's own. `only_high`: the part of the requests that only the high-load
    engine can serve. `long`: the part with prompts of `long_tokens`.
    """

    name: str
    length: Annotated[float, Field(gt=0, le=1000)] | None = None
    only_high: Annotated[float, Field(ge=0, le=1)] = 0.0
    long: Annotated[float, Field(ge=0, le=1)] = 0.0
    long_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 8000

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Reads a name and its keys, like "step only_high=0.2"; None for another name. Raises ValueError."""
        name, *terms = text.split() or [""]
        if name not in TRACES:
            return None
        keys = dict(term.partition("=")[::2] for term in terms)
        try:
            return TypeAdapter(cls).validate_python({"name": name} | keys)
        except ValidationError as exc:
            problem = exc.errors()[0]
            known = ", ".join(field.name for field in fields(cls) if field.name != "name")
            raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']} (keys: {known})") from exc


def make_trace(variant: Variant, pair: Pair, seed: int) -> tuple[TraceRequest, ...]:
    """Returns Poisson arrivals at the named shape's rate, from LOW to HIGH of what the pair completes.

    Arrivals are the same whatever their requests are like.
    """
    trace, draw = TRACES[variant.name], random.Random(f"{variant.name} {seed}")
    rate, seconds = trace.make_rate(draw), (variant.length or trace.length) * pair.answer_s
    low, high = LOW * pair.answers_per_s, HIGH * pair.answers_per_s
    times = _thin(draw, high, seconds, lambda at: (low + (high - low) * rate(at / seconds)) / high)
    kinds = random.Random(f"{variant} {seed}")
    return tuple(
        TraceRequest(
            at,
            variant.long_tokens if kinds.random() < variant.long else pair.prompt_tokens,
            pair.tokens,
            "high" if kinds.random() < variant.only_high else "",
        )
        for at in times
    )


def _thin(draw: random.Random, most: float, seconds: float, share: Rate) -> Iterator[float]:
    """Yields Poisson arrivals at `most` a second, each kept with the probability `share` of its time.

    Source: P. A. W. Lewis and G. S. Shedler, Simulation of nonhomogeneous Poisson processes by thinning (1979).
    """
    at = draw.expovariate(most)
    while at < seconds:
        if draw.random() < share(at):
            yield at
        at += draw.expovariate(most)
