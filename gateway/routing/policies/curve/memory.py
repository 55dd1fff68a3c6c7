"""What the policy remembers between beats, as the words of its state.

In: words. Out: a Memory to work on, and words again. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Self

NEVER = -1e9  # seconds: long ago


@dataclass(slots=True)
class EngineMemory:
    """Of one engine. `decode`, `prefill`: its times over the model's; `spread_*`: how unsure they are, as covariances.

    `error`: how far the model as calibrated was off of late, `misfit`: the corrected one, as logarithms of measured
    over predicted steps; `windows`: how many that is the mean of, older ones less. `max_sequences`: how many a replica
    runs at once, 0: as calibrated. `seen`, `decoding`, `context`: at the beat before, tokens generated so far,
    sequences and what they held. The window under way has `beats` (below 0: there is none), `since` it began so many
    decoded, and sums over them. `lasted_s`: how long it was the better one of late, 0: it was not yet. `until`: it is
    not gone to before; `failures`: how often that was wrong in a row.
    """

    decode: float = 1.0
    prefill: float = 1.0
    spread_decode: float = 0.0
    spread_both: float = 0.0
    spread_prefill: float = 0.0
    error: float = 0.0
    misfit: float = 0.0
    windows: float = 0.0
    max_sequences: float = 0.0
    seen: float = 0.0
    decoding: float = 0.0
    context: float = 0.0
    beats: float = -1.0
    steps: float = 0.0
    sequences: float = 0.0
    held: float = 0.0
    prefill_ms: float = 0.0
    elapsed_ms: float = 0.0
    since: float = 0.0
    waiting: float = 0.0
    begun: float = 0.0
    begun_tokens: float = 0.0
    begun_squares: float = 0.0
    lasted_s: float = 0.0
    until: float = NEVER
    failures: float = 0.0
    used_at: float = NEVER
    # For a split: the milliseconds of a step by what is in flight, and what prompt tokens add to it.
    step_ms: float = 0.0
    slope_ms: float = 0.0
    prompt_ms: float = 0.0
    room: float = 0.0


@dataclass(slots=True)
class Memory:
    """`rate`: arrivals a second; `answer_s`: what the plan is predicted to make of an answer, or of a first token.

    `owed_s`: the seconds that requests would have saved on the other engine of late; `price_s`: what the change that
    was weighed last would have cost; 0: none was. `is_watched`: whether a change is on trial; `watched`: since when (0:
    its moves are not over), tokens `made` by the beat before, and how long the engine before would, and this one should
    have taken for all since. `foreseen`: how many should be in flight at `foreseen_at`;
    `forecast_error`: the mean of the logarithm of how many there were over that. `trying_until`: the other engine is
    tried; `tried_at` last; `tries_failed` in a row. `gained_s`: what the last change has saved so far by the model, for
    `paid_s`; `caution`: how many times its price the next one has to be worth. `behind_since`: since when the other
    engine is forecast to be the better one, 0: it is not.
    """

    low: EngineMemory = field(default_factory=EngineMemory)
    high: EngineMemory = field(default_factory=EngineMemory)
    rate: float = 0.0
    answer_s: float = 0.0
    answer_tokens: float = 0.0
    owed_s: float = 0.0
    price_s: float = 0.0
    watched: float = 0.0
    is_watched: float = 0.0
    made: float = 0.0
    would_ms: float = 0.0
    should_ms: float = 0.0
    foreseen: float = 0.0
    foreseen_at: float = 0.0
    forecast_error: float = 0.0
    forecasts: float = 0.0
    trying_until: float = NEVER
    tried_at: float = NEVER
    tries_failed: float = 0.0
    gained_s: float = 0.0
    paid_s: float = 0.0
    caution: float = 1.0
    behind_since: float = 0.0

    @classmethod
    def read(cls, words: Sequence[float]) -> Self:
        if not words:
            return cls()
        return cls(EngineMemory(*words[:_SIZE]), EngineMemory(*words[_SIZE : 2 * _SIZE]), *words[2 * _SIZE :])

    def words(self) -> tuple[float, ...]:
        return (*_read_engine(self.low), *_read_engine(self.high), *_read_rest(self))

    @property
    def engines(self) -> tuple[EngineMemory, EngineMemory]:
        return self.low, self.high


_ENGINE = [each.name for each in fields(EngineMemory)]
_REST = [each.name for each in fields(Memory)][2:]
_SIZE = len(_ENGINE)
_read_engine, _read_rest = attrgetter(*_ENGINE), attrgetter(*_REST)
RATE, ANSWER_S, ANSWER_TOKENS = (2 * _SIZE + _REST.index(name) for name in ("rate", "answer_s", "answer_tokens"))
STEP_MS, SLOPE_MS, PROMPT_MS, ROOM = (_ENGINE.index(name) for name in ("step_ms", "slope_ms", "prompt_ms", "room"))
ENGINE_WORDS = _SIZE
WORDS = 2 * _SIZE + len(_REST)
