"""What an engine will make of a load: how many will be in flight, and how long answers and first tokens will take.

In: an engine's numbers, and a load by its rate and its lengths. Out: means over the coming seconds. Pure. It is the
mean field of what `replica` does step by step, some thousand times faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engines.physics.model import EngineModel

HORIZON_S, PARTS = 7.0, 7  # of a forecast
ROUNDS = 8  # of a fixed point, at most
CLOSE = 0.01  # of a step: then it is found
SETTLING = 12  # rounds, at most, until a rate and an answer's time agree
SETTLED = 1.02  # of an answer's time: then they do
MOST_PROMPTS = 30.0  # in a step: with more a load is beyond every engine


@dataclass(frozen=True, slots=True)
class Mix:
    """The lengths of a load, in tokens: a sample of what its prompts have to prefill, their mean, and an answer's.

    `context`: what one that runs holds in the mean.
    """

    prompts: tuple[float, ...]
    mean: float
    answer_tokens: float
    context: float

    @classmethod
    def of(cls, prompts: Sequence[float], answer_tokens: float, context: float | None = None, size: int = 8) -> "Mix":
        """Draws the sample as quantiles. `context` None: that of answers that are half done."""
        ordered = sorted(prompts) or [1.0]
        count = len(ordered)
        sample = [ordered[(2 * part + 1) * count // (2 * size)] for part in range(size)] if count > size else ordered
        mean = sum(ordered) / count
        answer_tokens = max(answer_tokens, 1.0)
        usual = mean + answer_tokens / 2
        return cls(tuple(sample), mean, answer_tokens, usual if context is None else context)


class Step(NamedTuple):
    """The mean milliseconds of a step, and of one with a prompt in it."""

    mean_ms: float
    prefill_ms: float


UNKNOWN = Step(0.0, 0.0)


class Outlook(NamedTuple):
    """Means over HORIZON_S and half an answer: how many are in flight, and seconds of an answer and to a first token.

    `end`: how many are in flight after HORIZON_S.
    """

    in_flight: float
    answer_s: float
    first_s: float
    end: float


def find_step(engine: EngineModel, running: float, rate: float, mix: Mix, before_ms: float = 0.0) -> Step:
    """Returns the steps of one replica with so many that decode, and so many prompts a second, like the mix's.

    Prompts arrive by chance, and the longer a step takes the likelier the next one has prompts: steps with prompts
    follow each other, and fewer of them have more in them. `before_ms`: about what one with a prompt takes, if that is
    known.
    """
    count = max(running, 1.0)
    decode_ms = engine.decode_ms(count, running * mix.context)
    idle_ms = max(decode_ms, engine.floor_ms(count, 0))
    if rate <= 0:
        return Step(idle_ms, idle_ms)
    after_idle = -math.expm1(-rate * idle_ms / 1e3)  # the chance that there is a prompt
    one_ms = _find_prefill_ms(engine, count, decode_ms, mix, 0.0)
    mean_ms, prefill_ms = idle_ms, before_ms or one_ms
    for _ in range(ROUNDS):
        after_prefill = -math.expm1(-min(rate * prefill_ms / 1e3, MOST_PROMPTS))
        some = after_idle / (1 - after_prefill + after_idle)  # the part of steps that have one, of a Markov chain
        mean_ms = (1 - some) * idle_ms + some * prefill_ms
        prompts = max(min(rate * mean_ms / 1e3, MOST_PROMPTS) / some, 1.0)
        more_ms = _find_prefill_ms(engine, count, decode_ms, mix, prompts) if prompts > 1 else one_ms
        found_ms = one_ms / prompts + more_ms * (1 - 1 / prompts)
        off = found_ms - prefill_ms
        prefill_ms = found_ms
        if -CLOSE * found_ms < off < CLOSE * found_ms:
            break
    return Step(mean_ms, prefill_ms)


def _find_prefill_ms(engine: EngineModel, count: float, decode_ms: float, mix: Mix, others: float) -> float:
    """Returns the mean milliseconds of a step with one of the mix's prompts, and as many usual ones besides."""
    prompt_ms, budget, more = engine.prompt_ms / 1e3, engine.budget_tokens, others * mix.mean
    graph, eager_ms, mixed_ms = engine.graph_tokens - count * engine.verified, engine.eager_ms, engine.mixed_ms
    squared_ms = engine.attention_ms / 1e6
    total, more_ms = 0.0, decode_ms + squared_ms * more * mix.mean
    for tokens in mix.prompts:
        read = tokens + more
        read = min(read, budget)
        needed = more_ms + prompt_ms * read + squared_ms * tokens * tokens
        floor = eager_ms if read > graph else mixed_ms
        total += needed if needed > floor else floor
    return total / len(mix.prompts)


def find_room(engine: EngineModel, mix: Mix) -> float:
    """Returns how many an engine runs at once at most; what is beyond waits."""
    room = float(engine.max_sequences)
    if engine.kv_tokens is not None:
        room = min(room, max(engine.kv_tokens / max(mix.context, 1.0), 1.0))
    return room * engine.replicas


def foresee(engine: EngineModel, mix: Mix, rate: float, in_flight: float) -> Outlook:
    """Foresees HORIZON_S with `rate` arrivals a second, where `in_flight` have come: dn/dt = rate - n / answer time.

    The point at which n would settle does not count: beyond its capacity an engine has none.
    """
    room, replicas, part_s = find_room(engine, mix), engine.replicas, HORIZON_S / PARTS
    steps = mix.answer_tokens / engine.tokens_per_step + 1
    count, total, answer_s, first_s, step = in_flight, 0.0, 0.0, 0.0, UNKNOWN
    for _ in range(PARTS):
        running = min(count, room) / replicas
        step = find_step(engine, running, rate / replicas, mix, step.prefill_ms)
        alone_s = (steps * step.mean_ms + engine.request_ms) / 1e3
        waits_s = alone_s * max(count / room - 1, 0.0)
        answer_s = alone_s + waits_s
        # Engines schedule ahead: a prompt that comes during a step is read in the one after the next.
        first_s += (1.5 * step.mean_ms + step.prefill_ms + engine.request_ms) / 1e3 + waits_s
        settled, gone = rate * answer_s, -math.expm1(-part_s / answer_s)
        total += settled * part_s + (count - settled) * answer_s * gone
        count += (settled - count) * gone
    mean = (total + count * answer_s / 2) / (HORIZON_S + answer_s / 2)
    return Outlook(mean, answer_s, first_s / PARTS, count)


def find_answer_s(engine: EngineModel, mix: Mix, rate: float, in_flight: float) -> float:
    """Returns an answer's seconds while so many are in flight all the time."""
    running = min(in_flight, find_room(engine, mix)) / engine.replicas
    step = find_step(engine, running, rate / engine.replicas, mix)
    steps = mix.answer_tokens / engine.tokens_per_step + 1
    return (steps * step.mean_ms + engine.request_ms) / 1e3 * max(in_flight / find_room(engine, mix), 1.0)


def find_settled_s(engine: EngineModel, mix: Mix, in_flight: float) -> float:
    """Returns an answer's seconds while so many are in flight all the time, and as many come as finish.

    The slower they finish the fewer come, and the faster they are served: between a time and what it makes of itself
    lies the one that is sought.
    """
    answer_s, least, most = find_answer_s(engine, mix, 0.0, in_flight), 0.0, math.inf
    for _ in range(SETTLING):
        lower, upper = sorted((answer_s, find_answer_s(engine, mix, in_flight / answer_s, in_flight)))
        least, most = max(least, lower), min(most, upper)
        if most < least * SETTLED:
            break
        answer_s = math.sqrt(least * most)
    return math.sqrt(least * most)


def find_capacity(engine: EngineModel, mix: Mix) -> float:
    """Returns how many answers a second the engine completes at most."""
    room = find_room(engine, mix)
    low, high = 0.0, 1e6
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if rate * find_answer_s(engine, mix, rate, room) <= room else (low, rate)
    return low


def find_pause_s(engine: EngineModel, context: float) -> float:
    """Returns the seconds that an engine takes to prefill what moves to it, while its others get no token."""
    return engine.prefill_ms(context, 0.0) / engine.replicas / 1e3
