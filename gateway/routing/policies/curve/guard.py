"""What came after a change, beside what the engine before would have made of it: if that is more, back again.

In: what was generated, the engines as corrected. Out: whether the change was wrong. Pure.
"""

from engines.physics import EngineModel
from engines.physics.forecast import find_step
from gateway.routing.policies.curve.load import Load
from gateway.routing.policies.curve.memory import EngineMemory, Memory

WATCH_S = 1.5  # in which tokens are compared
WORSE = 1.1  # the engine before would have made so many times as many
ARRIVED = 0.8  # of what has moved has had a token when the watch begins
BLOCK_S, MOST_BLOCK_S = 5.0, 120.0


def begin(memory: Memory) -> None:
    memory.is_watched, memory.watched = 1.0, 0.0


def block(left: EngineMemory, now: float) -> None:
    """Has an engine that was wrongly gone to not be gone to for a while, longer each time. A return is not watched."""
    left.until = now + min(BLOCK_S * 2**left.failures, MOST_BLOCK_S)
    left.failures += 1


def was_wrong(memory: Memory, engines: tuple[EngineModel, EngineModel], load: Load, side: int, now: float) -> bool:
    """Whether what was generated since the moves is less than the engine before would have."""
    if not memory.is_watched:
        return False
    here, left = load.backends[side], load.backends[1 - side]
    if left.in_flight > left.fixed or here.decoding < ARRIVED * here.in_flight or not here.decoding:
        memory.watched = 0.0
        return False
    if not memory.watched:
        memory.watched, memory.made, memory.would = now, float(here.generated), 0.0
        return False
    before = engines[1 - side]
    step = find_step(before, here.decoding / before.replicas, load.rate / before.replicas, load.mixes[1 - side])
    memory.would += here.decoding * before.tokens_per_step * 1e3 * load.elapsed_s / step.mean_ms
    if now - memory.watched < WATCH_S:
        return False
    memory.is_watched = 0.0
    if (here.generated - memory.made) * WORSE >= memory.would:
        memory.engines[side].failures = 0.0
        return False
    return True
