"""How fast engines are beside their model: live steps correct two scales of each, of decoding and of prefill, and how
many sequences it runs at once.

In: what an engine generated in a beat, and what it had to do. Out: an EngineMemory's scales, room and errors. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, TypeAlias

from pydantic import ConfigDict, Field, with_config

from engines.physics import EngineModel
from gateway.core import BackendDemand, FirstToken
from gateway.routing.policies.curve.memory import EngineMemory, Memory
from gateway.routing.policies.curve.node_model import NodeModel

WINDOW_BEATS = 10
LATE_S = 0.12  # a beat that took longer is one in which this process was held up
SPREAD = 0.3  # of a scale, before anything was seen: how unsure a calibration is
DRIFT, LEAST_DRIFT = 1.01, 1e-5  # of that spread with each window: an engine may change
NOISE = 0.1  # of a window's time
LEAST, MOST = 0.4, 2.5  # of scales: what a calibration may be off by
LEAST_PREFILL = 0.05  # where a cache that the engine does not report holds most of each prompt
KNOWN, ALIKE = 10.0, 0.7  # windows after which an engine is known by itself; how much both are off alike before
TOGETHER_S = 0.0015  # first tokens that come so close together were prefilled in one step
MEMORY = 20.0  # windows, after which one counts a third
WRONG = math.log(1.4)
ENOUGH = 6.0  # windows, before which nothing is called wrong
STEADY, FULL = 0.05, 0.8  # of those that decode: as many as before; of its KV, which limits them too
MANY = 4.0  # that wait, and that begin in a window: fewer show nothing
TOO_LONG = 2.0  # times as long as they take to read prompts wait for a place
MOST_SEQUENCES = 1e5
LESS_SURE = 0.1  # of a scale: what a machine may have become meanwhile is not known

Decode: TypeAlias = Annotated[float, Field(ge=LEAST, le=MOST)]
Prefill: TypeAlias = Annotated[float, Field(ge=LEAST_PREFILL, le=MOST)]
Spread: TypeAlias = Annotated[float, Field(ge=0, le=SPREAD * SPREAD)]
Error: TypeAlias = Annotated[float, Field(ge=-10, le=10)]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class Learned:
    """What of an EngineMemory outlives a restart, by its names there."""

    decode: Decode
    prefill: Prefill
    spread_decode: Spread
    spread_both: Annotated[float, Field(ge=-SPREAD * SPREAD, le=SPREAD * SPREAD)]
    spread_prefill: Spread
    error: Error
    misfit: Error
    windows: Annotated[float, Field(gt=0, le=MEMORY)]
    max_sequences: Annotated[float, Field(ge=0, le=MOST_SEQUENCES)] = 0.0

    @classmethod
    def of(cls, memory: EngineMemory) -> "Learned | None":
        """Returns None where nothing was learned."""
        return cls(*(getattr(memory, name) for name in cls.__slots__)) if memory.windows else None

    def resume(self, memory: EngineMemory) -> None:
        """Goes on with it, less sure than it was."""
        for name, value in asdict(self).items():
            setattr(memory, name, value)
        memory.spread_decode = min(self.spread_decode + LESS_SURE**2, SPREAD**2)
        memory.spread_prefill = min(self.spread_prefill + LESS_SURE**2, SPREAD**2)
        most = math.sqrt(memory.spread_decode * memory.spread_prefill)
        memory.spread_both = min(max(self.spread_both, -most), most)


def begin(memory: EngineMemory) -> None:
    """Gives an engine nobody has seen the spread of a calibration."""
    if not memory.spread_decode:
        memory.spread_decode = memory.spread_prefill = SPREAD * SPREAD


def learn(memory: EngineMemory, engine: EngineModel, seen: BackendDemand, elapsed_s: float, is_alone: bool) -> None:
    """Adds a beat to the engine's window, and learns from the window when it is full.

    `is_alone`: nothing else has used its GPUs. A beat that is late, or in which a worker died, teaches nothing.
    """
    new, memory.seen = seen.generated - memory.seen, float(seen.generated)
    # Where many begin in a beat, there are far more at its end than its tokens were generated for.
    decoding, memory.decoding = (memory.decoding + seen.decoding) / 2, float(seen.decoding)
    context, memory.context = (memory.context + seen.held) / 2, float(seen.held)
    is_usable = is_alone and not seen.foreign and new >= 0 and decoding >= engine.replicas
    if not is_usable or not 0 < elapsed_s < LATE_S:
        memory.beats = -1.0
        return
    memory.beats += 1
    if not memory.beats:  # the first one begins somewhere within it
        _begin_window(memory)
        return
    sequences, held = decoding / engine.replicas, context / engine.replicas
    memory.steps += max(new - len(seen.firsts), 0) / decoding / engine.tokens_per_step
    memory.sequences += sequences
    memory.held += held
    memory.elapsed_ms += 1000 * elapsed_s
    memory.prefill_ms += _find_prefill_ms(engine, sequences, held, seen) / engine.replicas
    memory.waiting += seen.in_flight - seen.decoding
    memory.begun += len(seen.firsts)
    for first in seen.firsts:
        tokens = (1 - seen.cached) * first.prompt_tokens
        memory.begun_tokens += tokens
        memory.begun_squares += tokens * tokens
    if memory.beats >= WINDOW_BEATS:
        _take(memory, engine)
        memory.max_sequences = _find_max_sequences(memory, engine)
        _begin_window(memory)


def _begin_window(memory: EngineMemory) -> None:
    memory.since, memory.beats = memory.decoding, 0.0
    memory.steps = memory.sequences = memory.held = memory.prefill_ms = memory.elapsed_ms = 0.0
    memory.waiting = memory.begun = memory.begun_tokens = memory.begun_squares = 0.0


def find_work_ms(engine: EngineModel, seen: BackendDemand, new: int | float) -> float:
    """Returns the milliseconds that an engine needs for what was seen in a beat, `new` tokens and the prompts."""
    if not seen.decoding:
        return 0.0
    sequences, held = seen.decoding / engine.replicas, seen.held / engine.replicas
    steps = max(new - len(seen.firsts), 0) / seen.decoding / engine.tokens_per_step
    prefill_ms = _find_prefill_ms(engine, sequences, held, seen) / engine.replicas
    return steps * engine.decode_ms(sequences, held) + prefill_ms


def correct(node: NodeModel, memory: Memory, least_prefill: float = 0.0) -> tuple[EngineModel, EngineModel]:
    """Returns the node's engines by what was seen of them, with prefill scales of at least `least_prefill`.

    One of which little was seen is taken to be off as the other one, in part: what slows one down (clocks, a busy host,
    requests that no model fits) mostly slows both, and by itself the idle one would look better than it is.
    """
    low, high = memory.engines
    return (
        _correct(node.low, low, node.high, high, least_prefill),
        _correct(node.high, high, node.low, low, least_prefill),
    )


def _correct(
    engine: EngineModel, own: EngineMemory, other_engine: EngineModel, other: EngineMemory, least_prefill: float
) -> EngineModel:
    known, alike = min(own.windows / KNOWN, 1.0), ALIKE * min(other.windows / KNOWN, 1.0)
    decode = known * own.decode + (1 - known) * (1 + alike * (other.decode - 1))
    prefill = max(known * own.prefill + (1 - known) * (1 + alike * (other.prefill - 1)), least_prefill)
    fewer = min(other.max_sequences / other_engine.max_sequences or 1.0, 1.0)
    most = round(own.max_sequences or fewer * engine.max_sequences)
    if most != engine.max_sequences:
        engine = replace(engine, max_sequences=max(most, 1))
    return engine if decode == prefill == 1.0 else engine.scaled(decode, prefill)


def is_wrong(memory: EngineMemory) -> bool:
    """Whether the engine is another one than was measured: calibrate again.

    One that reads prompts faster is not: its cache may hold parts of them.
    """
    at_bound = not LEAST < memory.decode < MOST or memory.prefill >= MOST
    is_other = memory.error > WRONG or math.log(memory.decode) < -WRONG
    return memory.windows >= ENOUGH and (at_bound or is_other)


def _find_prefill_ms(engine: EngineModel, sequences: float, held: float, seen: BackendDemand) -> float:
    """Returns by how much prompts have lengthened the steps that they were in.

    Of each, the part that the engine's cache holds in the mean was not prefilled, but attended to.
    """
    total_ms, decode_ms, cached = 0.0, engine.decode_ms(sequences, held), seen.cached
    for batch in _group(seen.firsts):
        tokens = (1 - cached) * sum(batch)
        needed = engine.prefill_ms(tokens, (1 - cached * cached) * sum(each * each for each in batch))
        total_ms += max(needed, engine.floor_ms(sequences, tokens) - decode_ms)
    return total_ms


def _group(firsts: Sequence[FirstToken]) -> Iterator[list[int]]:
    batch, last = list[int](), -math.inf
    for first in firsts:
        if batch and first.at - last > TOGETHER_S:
            yield batch
            batch = []
        batch.append(first.prompt_tokens)
        last = first.at
    if batch:
        yield batch


def _find_max_sequences(memory: EngineMemory, engine: EngineModel) -> float:
    """Returns how many sequences a replica runs at once at most, 0: as calibrated.

    More than that decode; or as many as before, while prompts wait far longer than all that wait take to be read.
    """
    beats, known = memory.beats, memory.max_sequences
    each, held = memory.sequences / beats, memory.held / beats
    if each > (known or engine.max_sequences):
        return each
    waiting = memory.waiting / beats
    is_steady = abs(memory.decoding - memory.since) <= STEADY * each * engine.replicas
    has_kv = engine.kv_tokens is None or held < FULL * engine.kv_tokens
    if min(waiting, memory.begun) < MANY or not (is_steady and has_kv):
        return known
    waits_ms = waiting / memory.begun * memory.elapsed_ms
    tokens = memory.begun_squares / max(memory.begun_tokens, 1.0)  # of one that waits: long ones take longer
    waiting_tokens = waiting / engine.replicas * tokens
    reads_ms = memory.prefill * engine.prefill_ms(waiting_tokens, waiting_tokens * tokens)
    step_ms = memory.decode * engine.decode_ms(each, held)
    return each if waits_ms > TOO_LONG * (reads_ms + 2 * step_ms + engine.request_ms) else known


def _take(memory: EngineMemory, engine: EngineModel) -> None:
    """Corrects the scales: a window's time = one * its steps' decoding + the other * what prompts add (R. E. Kalman, A
    new approach to linear filtering and prediction problems, 1960).
    """
    beats = memory.beats
    decode_ms = memory.steps * engine.decode_ms(memory.sequences / beats, memory.held / beats)
    prefill_ms, elapsed_ms = memory.prefill_ms, memory.elapsed_ms
    if decode_ms <= 0:
        return
    by_model = decode_ms + prefill_ms
    expected = memory.decode * decode_ms + memory.prefill * prefill_ms
    memory.windows += 1 - memory.windows / MEMORY
    weight = 1 / memory.windows
    memory.error += weight * (math.log(elapsed_ms / by_model) - memory.error)
    memory.misfit += weight * (math.log(elapsed_ms / expected) - memory.misfit)
    decode = memory.spread_decode * DRIFT + LEAST_DRIFT
    prefill = memory.spread_prefill * DRIFT + LEAST_DRIFT
    both = memory.spread_both * DRIFT
    decode_gain, prefill_gain = decode * decode_ms + both * prefill_ms, both * decode_ms + prefill * prefill_ms
    total = decode_ms * decode_gain + prefill_ms * prefill_gain + (NOISE * elapsed_ms) ** 2
    off = (elapsed_ms - expected) / total
    memory.decode = min(max(memory.decode + decode_gain * off, LEAST), MOST)
    memory.prefill = min(max(memory.prefill + prefill_gain * off, LEAST_PREFILL), MOST)
    memory.spread_decode = min(decode - decode_gain * decode_gain / total, SPREAD * SPREAD)
    memory.spread_prefill = min(prefill - prefill_gain * prefill_gain / total, SPREAD * SPREAD)
    memory.spread_both = both - decode_gain * prefill_gain / total
