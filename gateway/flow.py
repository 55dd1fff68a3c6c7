"""What one worker's answers under way amount to, in sums that are kept as answers begin, generate and end.

A beat reads the sums, so that it costs the same however many streams there are. In: the events of one answer at one
backend. Out: a row of numbers for shared memory. Knows no policy and no wire.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from gateway import lengths
from gateway.core import NO_CACHE_USE, FirstToken
from gateway.lengths import Lengths

FIRSTS = 128  # first tokens that a row keeps, of a backend
PROMPTS = 128  # recent prompts that it keeps
NOTHING = FirstToken(0.0, 0)


class Flow:
    """One worker's answers at one backend. `streams` are in flight, of which `decoding` have had a token from it and
    hold `held` tokens of context; the others will prefill `coming`. `generated`, `begun`: since counting began.
    """

    def __init__(self) -> None:
        self.streams = 0
        self.decoding = 0
        self.held = 0
        self.coming = 0
        self.generated = 0
        self.begun = 0
        self.firsts: deque[FirstToken] = deque([NOTHING] * FIRSTS, maxlen=FIRSTS)

    def begin(self, prompt_tokens: int) -> None:
        self.streams += 1
        self.coming += prompt_tokens

    def decode(self, prompt_tokens: int, at: float) -> None:
        """Its first token from this backend has come."""
        self.coming -= prompt_tokens
        self.held += prompt_tokens
        self.decoding += 1
        self.begun += 1
        self.firsts.append(FirstToken(at, prompt_tokens))

    def end(self, prompt_tokens: int, generated: int, *, has_begun: bool) -> None:
        """It is gone from this backend, of which it has had `generated` tokens."""
        self.streams -= 1
        if has_begun:
            self.decoding -= 1
            self.held -= prompt_tokens + generated
        else:
            self.coming -= prompt_tokens


class ModelFlow:
    """All of one worker's answers for one model, by backend: those that may move, and those that are `fixed`.

    `relayed`: how many others are there, whose tokens nobody counts. `ignored`: load-test runs that chose their
    backend, which no policy sees. `cache_use`: of each backend, as far as this worker's answers show it.
    """

    def __init__(self, backends: Iterable[str]) -> None:
        self.free = {name: Flow() for name in backends}
        self.fixed = {name: Flow() for name in self.free}
        self.relayed = dict.fromkeys(self.free, 0)
        self.ignored = Flow()
        self.cache_use = dict.fromkeys(self.free, NO_CACHE_USE)
        self.lengths = Lengths()
        self.ignored_lengths = Lengths()
        self._prompts = [0.0] * PROMPTS
        self._arrived = 0

    def arrive(self, prompt_tokens: int) -> None:
        self._prompts[self._arrived % PROMPTS] = prompt_tokens
        self._arrived += 1

    def words(self) -> list[float]:
        """Returns the row; `read_row` reads it."""
        row = [*self.lengths.words(), self._arrived, *self._prompts]
        for name, free in self.free.items():
            fixed, relayed = self.fixed[name], self.relayed[name]
            row += (
                fixed.streams + relayed,
                relayed,
                free.decoding + fixed.decoding,
                free.held + fixed.held,
                free.held + free.coming,
            )
            row += (free.generated + fixed.generated, free.begun + fixed.begun, *self.cache_use[name])
            firsts = sorted(chain(free.firsts, fixed.firsts))[-FIRSTS:] if fixed.begun else free.firsts
            row += chain.from_iterable(firsts)
        return row


class Standing(NamedTuple):
    """One worker's answers at one backend, as in core.BackendDemand. `begun`: how many first tokens have come.

    `queried`, `found`: of a core.CacheUse.
    """

    fixed: int
    relayed: int
    decoding: int
    held: int
    context: int
    generated: int
    begun: int
    queried: int
    found: int


_BACKEND = len(Standing._fields) + 2 * FIRSTS
_PROMPTS_AT = lengths.WORDS
_BACKENDS_AT = _PROMPTS_AT + 1 + PROMPTS


def count_words(backends: int) -> int:
    """Returns the size of a row."""
    return _BACKENDS_AT + backends * _BACKEND


def read_prompts(row: Sequence[float]) -> Sequence[float]:
    """Returns the lengths of the last prompts that arrived."""
    count = min(int(row[_PROMPTS_AT]), PROMPTS)
    return row[_PROMPTS_AT + 1 : _PROMPTS_AT + 1 + count]


def read_standing(row: Sequence[float], backend: int) -> Standing:
    start = _BACKENDS_AT + backend * _BACKEND
    return Standing(*map(int, row[start : start + len(Standing._fields)]))


def read_firsts(row: Sequence[float], backend: int, count: int) -> list[FirstToken]:
    """Returns the last `count` first tokens, FIRSTS at most, the oldest first."""
    end = _BACKENDS_AT + (backend + 1) * _BACKEND
    start = end - 2 * min(count, FIRSTS)
    return [FirstToken(row[at], int(row[at + 1])) for at in range(start, end, 2)]
