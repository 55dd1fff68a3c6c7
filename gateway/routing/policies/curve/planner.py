"""Where all that may move should run: what each engine would make of the coming load, against the price of a change.

In: a node model as corrected, a load, and the memory. Out: a side, 0 for the low-load engine and 1 for the other. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engines.physics import EngineModel, Outlook, foresee
from engines.physics.forecast import find_step
from gateway.routing.policies.curve import guard, trying
from gateway.routing.policies.curve.load import Load, Part
from gateway.routing.policies.curve.memory import Memory
from gateway.routing.policies.curve.node_model import NodeModel

KNOWN = 0.1  # a model's error up to which the margin is as configured
SEEN = 20.0  # windows, after which live errors count and a calibration's do not
# An engine with more than so many times what is in flight, and so many more, after a forecast does not keep up, if the
# other one would have less than so much of that.
GROWS, FEW, KEEPS_UP = 1.2, 2, 0.8
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
    """`engines`: the node's as corrected by what was seen."""

    rules: Rules
    node: NodeModel
    engines: tuple[EngineModel, EngineModel]

    def decide(self, memory: Memory, load: Load, side: int, since: float, now: float) -> int:
        """Returns the side to be on, and notes in the memory what led to it."""
        other, plans = 1 - side, [self.weigh(load, index, self.rules.headroom) for index in (0, 1)]
        here, there = plans[side], plans[other]
        saved = here.cost - there.cost
        memory.owed_s = max(memory.owed_s + saved * load.elapsed_s, 0.0)
        memory.gained_s -= saved * load.elapsed_s
        memory.price_s = self._find_price(memory, load, here, there)
        memory.answer_s = here.each_s
        if trying.is_on(memory):
            return trying.go_on(memory, side, now, is_better=here.cost <= there.cost * (1 - self.rules.margin))
        if self.rules.guards and guard.was_wrong(memory, self.engines, load, side, now):
            guard.block(memory.engines[side], now)
            return other
        is_time = max(since + self.rules.dwell_s, memory.engines[other].until) <= now
        if is_time and self._pays(memory, here, saved):
            guard.begin(memory)
            self._settle(memory, load)
            return other
        if self.rules.tries and trying.is_due(memory, self.engines, load, side, now):
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
        part, beside, mix = parts[index], parts[1 - index], load.mix
        engine = self.engines[index]
        if self.node.interference and any(beside):  # what cannot run elsewhere slows it down
            other = self.engines[1 - index]
            running, own = beside.in_flight / other.replicas, max(part.in_flight / engine.replicas, 1.0)
            step = find_step(other, running, rate * beside.share / other.replicas, mix)
            share = self.node.interference * min(beside.in_flight, 1.0)
            slower = 1 + share * step.mean_ms / engine.decode_ms(own, own * mix.context)
            engine = engine.scaled(slower, slower)
        return foresee(engine, mix, rate * part.share, part.in_flight)

    def _pays(self, memory: Memory, here: Weighed, saved: float) -> bool:
        if saved <= self.find_margin(memory) * here.cost:
            return False
        return saved * self.rules.horizon_s + memory.owed_s > memory.price_s * memory.caution

    def _find_price(self, memory: Memory, load: Load, here: Weighed, there: Weighed) -> float:
        """Returns the seconds that requests lose by a change and the way back: the pauses of what moves.

        Where the present engine does not keep up, it is the least since the other one became the better: what has come
        while the plan waited would make the change dearer all the time, and lock the plan.
        """
        price_s = self._find_loss(load)
        grows = here.end > GROWS * load.in_flight + FEW and there.end < KEEPS_UP * here.end
        return min(memory.price_s, price_s) if grows and memory.price_s and here.cost > there.cost else price_s

    def _find_loss(self, load: Load) -> float:
        """Returns what requests lose there and back, while what moves is prefilled and nobody gets a token."""
        total_s = 0.0
        for engine in self.engines:
            prefill_s = engine.prefill_ms(load.context, 0.0) / engine.replicas / 1e3
            pause_s = self.node.move_s + prefill_s * (1 + self.node.interference)
            moved = 0 if self.rules.objective == "ttft" else load.free
            total_s += pause_s * moved + load.rate * pause_s * pause_s / 2
        return total_s

    def _settle(self, memory: Memory, load: Load) -> None:
        """Looks back on the change before this one: where it has not paid, the next ones have to promise more."""
        if memory.paid_s:
            has_paid = memory.gained_s > memory.paid_s
            memory.caution = max(memory.caution * LESS, 1.0) if has_paid else min(memory.caution * MORE, MOST_CAUTION)
        memory.gained_s, memory.paid_s = 0.0, self._find_loss(load) / 2
