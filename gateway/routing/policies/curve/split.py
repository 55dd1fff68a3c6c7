"""Where a request goes on engines that have GPUs of their own: to the one on which it costs all requests least.

In: the engines as corrected, and a load; once a beat they become a few words, by which `find_cost_ms` weighs each
request. Pure.
"""

from collections.abc import Sequence

from engines.physics import EngineModel
from engines.physics.forecast import find_room, find_step
from gateway.routing.policies.curve.load import Load
from gateway.routing.policies.curve.memory import PROMPT_MS, ROOM, SLOPE_MS, STEP_MS, EngineMemory


def note(memory: EngineMemory, engine: EngineModel, load: Load, index: int) -> None:
    """Notes a line for the engine's steps about what is in flight on it now."""
    backend, mix = load.backends[index], load.mixes[index]
    in_flight = backend.in_flight
    running, share = in_flight / engine.replicas, in_flight / max(load.in_flight, 1)
    rate = load.rate * share / engine.replicas
    step_ms = find_step(engine, running, rate, mix).mean_ms
    more_ms = find_step(engine, running + 1, rate, mix).mean_ms
    memory.slope_ms = max(more_ms - step_ms, 0.0) / engine.replicas
    memory.step_ms = step_ms - memory.slope_ms * in_flight
    memory.prompt_ms = (1 - backend.cached) * engine.prompt_ms / 1e3
    memory.room = find_room(engine, mix)


def find_cost_ms(
    words: Sequence[float], engine: EngineModel, steps: float, prompt_tokens: int, in_flight: int
) -> float:
    """Returns the milliseconds that a request takes on an engine, and that it takes from all that run there.

    By its own time alone, long prompts would go to the engine that reads them faster, and stop all who run there.
    `words`: those of the engine's memory. `steps`: of its answer.
    """
    slope_ms, room = words[SLOPE_MS], words[ROOM]
    step_ms = words[STEP_MS] + slope_ms * (in_flight + 1)
    waits = max(in_flight + 1 - room, 0.0) / room if room else 0.0
    prefill_ms = words[PROMPT_MS] * prompt_tokens
    return steps * (step_ms * (1 + waits) + slope_ms * in_flight) + prefill_ms * (1 + in_flight / engine.replicas)
