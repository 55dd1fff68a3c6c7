"""A policy's State as words of shared memory. In: a state, or words. Out: the same. Locks nothing."""

from collections.abc import Sequence

from gateway.core import STATE_WORDS as POLICY_WORDS
from gateway.core import State
from gateway.shared import Floats, Ints

SIDE, VERSION, SINCE, COUNT, FIRST = range(5)
STATE_WORDS = FIRST + POLICY_WORDS


def write_state(ints: Ints, floats: Floats, state: State, backends: Sequence[str]) -> None:
    """Writes a state. `ints` and `floats`: two views of the same STATE_WORDS words."""
    ints[SIDE], ints[VERSION], ints[COUNT] = backends.index(state.side), state.version, len(state.words)
    floats[SINCE] = state.since
    for word, value in enumerate(state.words, FIRST):
        floats[word] = value


def read_state(ints: Ints, floats: Floats, backends: Sequence[str]) -> State:
    words = tuple(floats[FIRST : FIRST + ints[COUNT]].tolist())
    return State(backends[ints[SIDE]], floats[SINCE], ints[VERSION], words)
