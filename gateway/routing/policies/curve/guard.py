"""What came after a change, beside what either engine needs for it: if the one before is faster, back again.

In: what was generated and read, the engines as corrected. Out: whether the change was wrong. Pure.
"""

from engines.physics import EngineModel
from gateway.routing.policies.curve.learning import find_work_ms
from gateway.routing.policies.curve.load import Load
from gateway.routing.policies.curve.memory import EngineMemory, Memory

WATCH_S = 1.5  # in which work is compared
WORSE = 1.1  # it took so many times as long as it would have before, and as it should here
ARRIVED = 0.8  # of what has moved has had a token when the watch begins
BLOCK_S, MOST_BLOCK_S = 5.0, 120.0


def begin(memory: Memory) -> None:
    memory.is_watched, memory.watched = 1.0, 0.0


def block(left: EngineMemory, now: float) -> None:
    """Has an engine that was wrongly gone to not be gone to for a while, longer each time. A return is not watched."""
    left.until = now + min(BLOCK_S * 2**left.failures, MOST_BLOCK_S)
    left.failures += 1


def was_wrong(memory: Memory, engines: tuple[EngineModel, EngineModel], load: Load, side: int, now: float) -> bool:
    """Whether what was done since the moves took longer than it should, and longer than on the engine before."""
    if not memory.is_watched:
        return False
    here, left = load.backends[side], load.backends[1 - side]
    if left.in_flight > left.fixed or here.decoding < ARRIVED * here.in_flight or not here.decoding:
        memory.watched = 0.0
        return False
    new, memory.made = here.generated - memory.made, float(here.generated)
    if not memory.watched:
        memory.watched, memory.would_ms, memory.should_ms = now, 0.0, 0.0
        return False
    memory.would_ms += find_work_ms(engines[1 - side], here, new)
    memory.should_ms += find_work_ms(engines[side], here, new)
    if now - memory.watched < WATCH_S:
        return False
    memory.is_watched = 0.0
    is_worse = 1e3 * (now - memory.watched) > WORSE * max(memory.would_ms, memory.should_ms)
    if not is_worse:
        memory.engines[side].failures = 0.0
    return is_worse
