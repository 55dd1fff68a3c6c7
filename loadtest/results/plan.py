"""What a calibration will measure: levels, tokens, windows, repeats, order. Pure; knows no clock and no network."""

import math
import random
from dataclasses import dataclass, field

from loadtest.client.window import WindowRule
from loadtest.decide.cost import NO_COST, Cost
from loadtest.decide.refine import Aim
from loadtest.decide.slo import Slo
from loadtest.decide.soundness import LOOSE, USUAL, Limits
from loadtest.results.cell import Pair
from loadtest.results.hardware import Declared, list_gpus

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every number that a calibration depends on. A window spans whole requests of a cell's leading stream.

    `repeats`: pairs at every level of the sweep; `shuffle`: whether each repeat has another order of levels.
    `null_pairs`: pairs of a backend with itself, before the sweep. `settle_requests`: requests of the leading stream
    between warm-up and window. `window_requests`: the least of that stream in a window, `window_answers`: the least of
    all streams of this process, `window_s`: its least length. `retries`: pairs measured again over the run because a
    cell was not steady. `refine_pairs`: the most pairs after the sweep, measured until `aim` is reached or the run has
    taken `budget_s` seconds. `widest`: a confidence set whose upper end is more than this many times its lower one
    gives no threshold; None accepts any. `band`: backends closer than this share are tied. `margin`: least share
    between the crossing and either bound of the threshold. `rehearsals`: the most times that a changing load is
    served in each way once a policy is set, `trace`: that of a trace, by name or file; None: a step. `turns`: how often
    both engines are measured alone and together; 0: no node model. `limits`: how sound the measurement has to be.
    `hardware`: what the operator declared. `cost`: what GPUs cost; it changes nothing that is measured.
    """

    mode: str = "full"
    levels: tuple[int, ...] = LEVELS
    tokens: int = 256
    prompt_words: int = 48
    repeats: int = 3
    shuffle: bool = True
    null_pairs: int = 2
    settle_requests: int = 0
    window_requests: int = 2
    window_answers: int = 0
    window_s: float = 3.0
    retries: int = 4
    refine_pairs: int = 24
    aim: Aim = field(default_factory=Aim)
    widest: float | None = 1.5
    budget_s: float | None = 400.0
    band: float = 0.03
    margin: float = 0.15
    rehearsals: int = 5
    trace: str | None = None
    turns: int = 3
    slo: Slo | None = None
    limits: Limits = USUAL
    hardware: Declared | None = None
    cost: Cost | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1 or len(set(self.levels)) < len(self.levels):
            raise ValueError("levels are distinct and at least 1")
        if self.window_s <= 0:
            raise ValueError("a window has a length")
        if self.tokens < 2:
            raise ValueError("an answer needs at least 2 tokens, or it has no time per token")
        if self.repeats < 2:
            raise ValueError("repeats are at least 2, or nothing distinguishes a difference from chance")

    @property
    def known_cost(self) -> Cost:
        """The cost, with the GPUs that were declared with the hardware."""
        return (self.cost or NO_COST).with_declared(list_gpus(self.hardware))

    @property
    def window(self) -> WindowRule:
        return WindowRule(self.settle_requests, self.window_requests, self.window_s, self.window_answers)

    def schedule(self) -> list[Pair]:
        """Lists null pairs and the sweep: A then B in one repeat, B then A in the next, neighbours the other way round.

        Drift then cancels instead of favouring the backend measured last (docs/calibration.md).
        """
        levels = sorted(self.levels)
        middle = levels[len(levels) // 2]
        nulls = [Pair(middle, low_first=number % 2 == 0, is_null=True) for number in range(self.null_pairs)]
        return nulls + [
            Pair(level, low_first=(levels.index(level) + repeat) % 2 == 0)
            for repeat in range(self.repeats)
            for level in self._order(levels, repeat)
        ]

    def sweep_s(self, e2e_s: float) -> float:
        """Estimates the sweep's seconds where a request alone takes `e2e_s`, and three times that at 128 in flight."""
        return sum(2 * self.cell_s(e2e_s * (1 + pair.level / 64)) for pair in self.schedule())

    def cell_s(self, e2e_s: float) -> float:
        """Returns the seconds of one cell: ramp, settling, window."""
        window = max(self.window_requests, math.ceil(self.window_s / e2e_s))
        return (1 + self.settle_requests + window) * e2e_s

    def _order(self, levels: list[int], repeat: int) -> list[int]:
        if not self.shuffle:
            return levels
        return random.Random(f"{self.seed}/{repeat}").sample(levels, len(levels))


FULL = Plan()
# Three minutes instead of ten, for a demo or a first look.
QUICK = Plan(
    mode="quick",
    levels=(1, 8, 32, 64, 128),
    tokens=128,
    prompt_words=48,
    repeats=2,
    shuffle=False,
    null_pairs=0,
    window_s=2.5,
    turns=2,
    widest=4.0,
    budget_s=80.0,
    limits=LOOSE,
)
