"""In a quiet minute the engine not used gets all for a few seconds: one wrongly thought worse is never found otherwise.
Once at any load, where the model of the engine in use is wrong and nothing was seen of the other one yet.

In: a load, and when engines were used. Out: whether to try, and how it ended. Pure.
"""

from engines.physics import EngineModel
from engines.physics.forecast import find_answer_s, find_room
from gateway.routing.policies.curve.learning import is_wrong
from gateway.routing.policies.curve.load import Load
from gateway.routing.policies.curve.memory import NEVER, Memory

TRY_S = 5.0
EVERY_S, MOST_EVERY_S = 600.0, 6 * 3600.0  # at most once in so long, rarer after failures
QUIET = 0.3  # of what either engine completes


def note_use(memory: Memory, side: int, now: float) -> None:
    """Notes which engine is used; one that never was counts as used when the plan began."""
    for engine in memory.engines:
        if engine.used_at <= NEVER:
            engine.used_at = now
    memory.engines[side].used_at = now


def is_on(memory: Memory) -> bool:
    return memory.trying_until > NEVER


def is_due(memory: Memory, engines: tuple[EngineModel, EngineModel], load: Load, side: int, now: float) -> bool:
    """`engines`: as corrected."""
    since = max(memory.tried_at, memory.engines[1 - side].used_at)
    pause_s = min(EVERY_S * 2**memory.tries_failed, MOST_EVERY_S)
    if now - since < pause_s or load.backends[side].decoding < 1:
        return False
    return all(_is_quiet(engine, load) for engine in engines)


def is_overdue(memory: Memory, unseen: EngineModel, load: Load, side: int) -> bool:
    """Whether the model of the engine in use is wrong, and nothing was seen of the other one, `unseen` as calibrated.

    Both may have been taken for each other, and what the one taught would be held against the other.
    """
    here, other = memory.engines[side], memory.engines[1 - side]
    if memory.tried_at > NEVER or other.windows or not is_wrong(here):
        return False
    return _completes(unseen, load, load.rate)


def begin(memory: Memory, now: float) -> None:
    memory.trying_until, memory.tried_at, memory.is_watched = now + TRY_S, now, 0.0


def go_on(memory: Memory, side: int, now: float, *, is_better: bool) -> int:
    """Returns the side to be on. At the end of a try it stays where it `is_better`, by what was seen meanwhile."""
    if now < memory.trying_until:
        return side
    memory.trying_until = NEVER
    memory.tries_failed = 0.0 if is_better else memory.tries_failed + 1
    return side if is_better else 1 - side


def _is_quiet(engine: EngineModel, load: Load) -> bool:
    """Whether the engine would serve several times as much."""
    return _completes(engine, load, load.rate / QUIET)


def _completes(engine: EngineModel, load: Load, rate: float) -> bool:
    room = find_room(engine, load.mix)
    return rate * find_answer_s(engine, load.mix, rate, room) <= room
