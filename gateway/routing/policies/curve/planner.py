"""Where all that may move should run: what each engine would make of the coming load, against the price of a change.

In: a node model as corrected, a load, and the memory. Out: a side, 0 for the low-load engine and 1 for the other. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engines.physics import EngineModel, Outlook, foresee
from engines.physics.forecast import find_answer_s, find_room, find_settled_s
from gateway.routing.policies.curve import guard, trying
from gateway.routing.policies.curve.load import Load, Part
from gateway.routing.policies.curve.memory import EngineMemory, Memory
from gateway.routing.policies.curve.node_model import NodeModel

KNOWN = 0.1  # a model's error up to which the margin is as configured
SEEN = 15.0  # windows, after which live errors count and a calibration's do not
BACK = 0.5  # of the crossing is in flight when a rise of the load takes answers back to the high-load engine
CLOSE = 1.1  # of a crossing: then it is found
LASTING = 0.5  # of the time for which an engine was the better one of late: so long a saving counts at most
BRIEF_S = 0.5  # what is over sooner was a mistake, and no short peak
SETTLED_S = 60.0  # on one engine, before what is owed pays for a change in a quiet moment
LESS, MORE, MOST_CAUTION = 0.9, 2.0, 8.0
NOTHING = Outlook(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rules:
    """The keys of the policy that decide about a change."""

    objective: Literal["answer", "ttft"]
    horizon_s: float
    headroom: float
    margin: float
    dwell_s: float
    guards: bool
    tries: bool


@dataclass(frozen=True, slots=True)
class Weighed:
    """A plan's cost: the seconds of answers, or of waiting for first tokens, that pass in a second; and one's own.

    `end`: how many will be in flight after the forecast.
    """

    cost: float
    each_s: float
    end: float


@dataclass(frozen=True, slots=True)
class Planner:
    """`engines`: the node's as corrected by what was seen; `movers`: the same for answers that move, which are in no
    cache.
    """

    rules: Rules
    node: NodeModel
    engines: tuple[EngineModel, EngineModel]
    movers: tuple[EngineModel, EngineModel]

    def decide(self, memory: Memory, load: Load, side: int, since: float, now: float) -> int:
        """Returns the side to be on, and notes in the memory what led to it."""
        other, plans = 1 - side, [self.weigh(load, index, self.rules.headroom) for index in (0, 1)]
        here, there = plans[side], plans[other]
        saved = here.cost - there.cost
        memory.owed_s = max(memory.owed_s + saved * load.elapsed_s, 0.0)
        memory.gained_s -= saved * load.elapsed_s
        memory.answer_s = here.each_s
        if trying.is_on(memory):
            return trying.go_on(memory, side, now, is_better=here.cost < there.cost)
        # Where by the model too the other one is better now, the load has changed, and that is a plan's affair.
        if self.rules.guards and guard.was_wrong(memory, self.engines, load, side, now) and saved <= 0:
            guard.block(memory.engines[side], now)
            return other
        self._note_peak(memory, here, saved, other, now)
        is_time = max(since + self.rules.dwell_s, memory.engines[other].until) <= now
        worth = self._find_worth(memory, here, saved, now - since, memory.engines[other].lasted_s)
        if is_time and worth and self._pays(memory, load, worth, other):
            guard.begin(memory)
            self._settle(memory, load, other)
            _note_age(memory.engines[side], now - since)
            return other
        if self.rules.tries and self._should_try(memory, load, side, now):
            trying.begin(memory, now)
            return other
        return side

    def weigh(self, load: Load, side: int, headroom: float) -> Weighed:
        """Predicts a plan: all that is free on one side, with a part more arrivals than there are."""
        rate, parts = load.rate * (1 + headroom), load.split(side)
        looks = [
            self._foresee(index, parts, load, rate) if index == side or any(parts[index]) else NOTHING
            for index in (0, 1)
        ]
        first_s = sum(part.share * look.first_s for part, look in zip(parts, looks, strict=True))
        answer_s = sum(part.share * look.answer_s for part, look in zip(parts, looks, strict=True))
        end = sum(look.end for look in looks)
        if self.rules.objective == "ttft":
            return Weighed(rate * first_s, first_s, end)
        return Weighed(sum(look.in_flight for look in looks), answer_s, end)

    def find_margin(self, memory: Memory) -> float:
        """Returns which part a change has to save: more where the model was found to be off."""
        calibrated = (self.node.low_error, self.node.high_error)
        errors = [
            abs(engine.misfit) if engine.windows >= SEEN else error
            for engine, error in zip(memory.engines, calibrated, strict=True)
        ]
        return self.rules.margin + max(max(errors) - KNOWN, 0.0) / 2

    def _foresee(self, index: int, parts: Sequence[Part], load: Load, rate: float) -> Outlook:
        part, beside = parts[index], parts[1 - index]
        engine = self.engines[index]
        if self.node.interference and beside.in_flight:  # what cannot run elsewhere slows it down
            slower = 1 + self.node.interference * min(beside.in_flight, 1.0)
            engine = engine.scaled(slower, slower)
        return foresee(engine, load.mixes[index], rate * part.share, part.in_flight)

    def _should_try(self, memory: Memory, load: Load, side: int, now: float) -> bool:
        unseen = tuple(self.node)[1 - side]
        return trying.is_overdue(memory, unseen, load, side) or trying.is_due(memory, self.engines, load, side, now)

    def _find_worth(self, memory: Memory, here: Weighed, saved: float, age_s: float, lasted_s: float) -> float:
        """Returns the seconds that pay for a change: what it saves soon, where that is more than chance, and what is
        owed. `age_s`: of the plan; `lasted_s`: how long the other engine was the better one, of late.

        Where peaks are shorter than the horizon a change saves less than it seems to; those that last show in what is
        owed. That pays alone after long, in a lull: nothing is saved in it, but a change costs least there.
        """
        if saved > self.find_margin(memory) * here.cost:
            horizon_s = min(self.rules.horizon_s, LASTING * lasted_s or math.inf)
            return saved * horizon_s + memory.owed_s
        is_lull = -self.rules.margin * here.cost < saved <= 0
        return memory.owed_s if is_lull and age_s >= SETTLED_S else 0.0

    def _note_peak(self, memory: Memory, here: Weighed, saved: float, other: int, now: float) -> None:
        """Notes for how long the other engine was the better one, once this one clearly is again."""
        if saved > 0:
            memory.behind_since = memory.behind_since or now
        elif memory.behind_since and saved < -self.rules.margin * here.cost:
            _note_age(memory.engines[other], now - memory.behind_since)
            memory.behind_since = 0.0

    def _pays(self, memory: Memory, load: Load, worth: float, to: int) -> bool:
        memory.price_s = self._find_price(load, to)
        return worth > memory.price_s * memory.caution

    def _find_price(self, load: Load, to: int) -> float:
        """Returns the seconds that requests lose by a change: the pause of what moves now, and of what moves back.

        What is in flight beyond the crossing has come while the plan waited, and counts in part (the geometric mean of
        both): in full, an engine that does not keep up would be kept for ever; but it moves. The way back is part of
        the price: who leaves the low-load engine comes back when the load falls, and who goes to it leaves again when
        the load rises.
        """
        low, high = self.movers
        if to:
            moved = math.sqrt(self._find_crossing(load, load.free) * load.free)
            return self._find_loss(high, load, moved) + self._find_loss(low, load, moved)
        back = BACK * self._find_crossing(load, load.free / BACK)
        return self._find_loss(low, load, load.free) + self._find_loss(high, load, back)

    def _find_loss(self, to: EngineModel, load: Load, moved: float) -> float:
        """Returns what requests lose while `moved` of them are prefilled, and nobody gets a token.

        They leave together (moves.BURST_S), so that the engine that they go to has its GPUs for itself.
        """
        context = load.context / load.free if load.free else load.mix.context
        pause_s = self.node.move_s + to.prefill_ms(moved * context, 0.0) / to.replicas / 1e3
        coming = load.rate * pause_s * pause_s / 2
        return coming if self.rules.objective == "ttft" else pause_s * moved + coming

    def _find_crossing(self, load: Load, most: float) -> float:
        """Returns how many are in flight on either engine when the high-load one's answers become the shorter ones.

        `most`: at most; what is beyond it makes no difference, and looking for it is what a plan takes longest for.
        """
        least, most = 1.0, min(most, *map(find_room, self.engines, load.mixes))
        if not self._is_beyond(load, most):
            return most
        while most > least * CLOSE:
            middle = math.sqrt(least * most)
            least, most = (least, middle) if self._is_beyond(load, middle) else (middle, most)
        return most

    def _is_beyond(self, load: Load, in_flight: float) -> bool:
        """Whether the high-load engine's answers are the shorter ones: in the time of the other one's it gets as many,
        and takes less for them.
        """
        (low, high), (mix, high_mix) = self.engines, load.mixes
        low_s = find_settled_s(low, mix, in_flight)
        return find_answer_s(high, high_mix, in_flight / low_s, in_flight) < low_s

    def _settle(self, memory: Memory, load: Load, to: int) -> None:
        """Looks back on the change before this one: where it has not paid, the next ones have to promise more."""
        if memory.paid_s:
            has_paid = memory.gained_s > memory.paid_s
            memory.caution = max(memory.caution * LESS, 1.0) if has_paid else min(memory.caution * MORE, MOST_CAUTION)
        memory.gained_s, memory.paid_s = 0.0, self._find_price(load, to)


def _note_age(engine: EngineMemory, age_s: float) -> None:
    """Adds a time in which an engine was the better one, and that has ended: the mean, older ones less."""
    if age_s >= BRIEF_S:
        engine.lasted_s = (engine.lasted_s + age_s) / 2 if engine.lasted_s else age_s
