"""Pairs of engines by name, and what a closed loop of requests gets of one: pairs.json has their numbers and sources.

In: a name, a file. Out: models, tokens a second, where a pair crosses. No clock.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from engines.physics import EngineModel, Job, Replica

PAIRS = Path(__file__).with_name("pairs.json")
RECITED_CONTEXT = 8192  # tokens of an engine that computes nothing: no model limits it
MAX_LEVEL = 512  # where a crossing is looked for
Role: TypeAlias = Literal["low", "high"]


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class Pair:
    """The engine for low load and the one for high load.

    `interference`: how many times its own time a step takes longer beside the other engine, on shared GPUs. `computes`:
    whether a model computes the answers in time; else their ids mean nothing. `prefix_cache`: whether prompts are read
    once.
    """

    about: str
    interference: Annotated[float, Field(ge=0, le=10)]
    computes: bool
    prefix_cache: bool
    engines: Mapping[Role, EngineModel]

    def __post_init__(self) -> None:
        if len(self.engines) != len(("low", "high")):
            raise ValueError("a pair has two engines, low and high")


class Lengths(NamedTuple):
    """Tokens of a prompt and of its answer."""

    prompt: int
    answer: int


def load_pairs(path: Path = PAIRS) -> dict[str, Pair]:
    """Loads pairs by name. Raises ValueError for a file that holds no pairs, OSError for one that cannot be read."""
    try:
        return TypeAdapter(dict[str, Pair]).validate_json(path.read_bytes())
    except ValidationError as exc:
        raise ValueError(f"{path}: {exc.errors()[0]['msg']} at {exc.errors()[0]['loc']}") from exc


def find_throughput(engine: EngineModel, level: int, lengths: Lengths) -> float:
    """Returns the tokens per second that `level` clients get, each of which asks again when its answer has ended.

    They begin one after the other during the first answer; two answers later as many answers are counted.
    """
    replicas = [Replica(engine) for _ in range(engine.replicas)]
    first_s = lengths.answer / engine.tokens_per_step * engine.step_ms(level / engine.replicas, 0.0) / 1e3
    events: list[tuple[float, int, Replica | None]] = [(first_s * at / level, at, None) for at in range(level)]
    order, ended, now = level, 0, 0.0
    counted = since_s = None
    while counted is None or since_s is None or ended < counted + 2 * level:
        now, _, replica = heapq.heappop(events)
        if replica is None:
            replica = min(replicas, key=len)
            replica.add(Job(now, lengths.prompt, lengths.answer))
            if replica.step_ms:
                continue
        else:
            for _ in replica.end(now):
                ended, order = ended + 1, order + 1
                heapq.heappush(events, (now + engine.request_ms / 1e3, order, None))
            if counted is None and ended >= 2 * level:
                counted, since_s = ended, now
        if step_ms := replica.begin():
            order += 1
            heapq.heappush(events, (now + step_ms / 1e3, order, replica))
    return (ended - counted) * lengths.answer / (now - since_s)


def find_crossing(low: EngineModel, high: EngineModel, lengths: Lengths) -> float | None:
    """Returns at how many in flight both give as many tokens, the low-load engine more before; None if nowhere."""

    def gain(level: int) -> float:
        return math.log(find_throughput(low, level, lengths) / find_throughput(high, level, lengths))

    above = 1
    while gain(above) >= 0:
        above *= 2
        if above > MAX_LEVEL:
            return None
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if gain(middle) >= 0 else (below, middle)
    return below + gain(below) / (gain(below) - gain(above)) if below else None
