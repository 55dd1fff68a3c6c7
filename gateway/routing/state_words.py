"""A policy's State as words of shared memory. In: a state, or words. Out: the same. Locks nothing."""

from collections.abc import Sequence

from gateway.core import Seen, State
from gateway.shared import Floats, Ints

SIDE, VERSION, SINCE, IS_SPLIT, RATE, ANSWER_S, FOREGONE_S, USUAL_RATE, PACES = range(9)
SEEN = PACES + 2  # two paces, and then three words of each backend
STATE_WORDS = SEEN + 6


def write_state(ints: Ints, floats: Floats, state: State, backends: Sequence[str]) -> None:
    """Writes a state. `ints` and `floats`: two views of the same STATE_WORDS words."""
    ints[SIDE], ints[VERSION], ints[IS_SPLIT] = backends.index(state.side), state.version, state.is_split
    floats[SINCE], floats[RATE], floats[ANSWER_S] = state.since, state.rate, state.answer_s
    floats[FOREGONE_S], floats[USUAL_RATE] = state.foregone_s, state.usual_rate
    for word, value in enumerate((*state.paces, *state.seen[0], *state.seen[1]), PACES):
        floats[word] = value


def read_state(ints: Ints, floats: Floats, backends: Sequence[str]) -> State:
    side, is_split = backends[ints[SIDE]], bool(ints[IS_SPLIT])
    planned = (floats[RATE], floats[ANSWER_S], floats[FOREGONE_S], floats[USUAL_RATE])
    low, high = (Seen(*floats[start : start + 3]) for start in (SEEN, SEEN + 3))
    return State(
        side, floats[SINCE], ints[VERSION], is_split, *planned, (low, high), (floats[PACES], floats[PACES + 1])
    )
