"""The policy that predicts: from a measured model of the node, the plan that serves the coming load in the least time.

In: demand, a node model, and the plan so far. Out: a plan (all here, all there, or both), and routes that follow it.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gateway.core import Demand, Load, MoveTerms, Placeable, Route, State
from gateway.routing.policies.demand import MOST_S, find_rate
from gateway.routing.policies.forecast import ANSWER, TTFT, Objective, Part, Shape, answers_s, predict_s
from gateway.routing.policies.node_model import EngineModel, NodeModel
from gateway.routing.policies.pace import find_paces, look
from gateway.routing.policies.two_backends import TwoBackends
from gateway.settings import number

SHARED = 0.5  # engines that interfere so much are not used both: each would run at the pace of the two together
BACK = 0.5  # of the crossing is in flight when a rise of the load takes answers back to the high-load engine
USUAL_S = 8.0  # after which an earlier rate counts a third: what grows is more than the mean of so long
MOST_GROWTH = 1.0  # of a rate, that may come again
GRAIN = 0.05  # of a growth: few models to keep
Plan = tuple[str, bool]  # who gets all, and whether it is a split, which counts as the low-load engine's
SPLITS = (0.9, 0.75, 0.6, 0.5, 0.4, 0.25, 0.1)  # shares of the low-load engine that a forecast tries


@dataclass(frozen=True, slots=True)
class Curve(TwoBackends):
    """Goes over to another plan when that is predicted to save more time, within horizon_s, than the change costs.

    On engines that share their GPUs all requests are on one side, and running answers follow a change. On GPUs of their
    own both are used as soon as that is better, and each request goes where it costs all requests least. Without `node`
    all go to `fallback`.
    """

    kind: ClassVar[str] = "curve"

    node: Annotated[NodeModel | None, Field(description="What a calibration measured of the two engines.")] = None
    fallback: Annotated[
        Literal["low", "high"], Field(description="Which backend gets all requests while there is no node model.")
    ] = "high"
    objective: Annotated[
        Literal["answer", "ttft"], Field(description="What is to be short: whole answers, or the time to first tokens.")
    ] = "answer"
    horizon_s: Annotated[float, number(0, 600, "A change has to pay within this many seconds.")] = 3.0
    headroom: Annotated[
        float, number(0, 10, "To go to `low`, it has to be the faster one with this part more in flight than there is.")
    ] = 0.25
    margin: Annotated[float, number(0, 1, "A change has to save more than this part of an answer's time.")] = 0.05
    evidence: Annotated[
        float, number(0, 100, "How many standard deviations later arrivals must be off for earlier ones not to count.")
    ] = 3.7
    dwell_s: Annotated[float, number(0, 3600, "Keep a plan for at least this many seconds.")] = 0.3

    def __str__(self) -> str:
        shown = {key: value for key, value in self.keys().items() if key != "node"}
        known = "unknown" if self.node is None else "measured"
        return " ".join((self.kind, *(f"{key}={value}" for key, value in shown.items()), f"node={known}"))

    def keys(self) -> Mapping[str, object]:
        return {**TwoBackends.keys(self), "node": None if self.node is None else asdict(self.node)}

    @property
    def plans(self) -> bool:
        return self.node is not None

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        yield from TwoBackends.problems(self, backends)
        if self.objective == "ttft" and self.node is not None and not all(engine.ttft_ms for engine in self.node):
            yield "objective", "ttft needs ttft_ms of both engines in the node model: calibrate again"

    def max_in_flight(self, backend: str) -> int | None:
        if self.node is None:
            return None
        return {self.low: self.node.low.max_in_flight, self.high: self.node.high.max_in_flight}.get(backend)

    def start(self, version: int, now: float, side: str | None = None) -> State:
        if self.node is None:
            return State(side={"low": self.low, "high": self.high}[self.fallback], since=now, version=version)
        known = side if side in {self.low, self.high} else None
        return State(side=known or self.low, since=now - self.dwell_s, version=version)

    def find_left(self, state: State) -> Collection[str]:
        """Answers on engines that do not interfere stay where they are: both go on at their own pace."""
        if state.is_split or self.node is None or self.node.interference < SHARED:
            return ()
        return {self.low, self.high} - {state.side}

    def find_paces(self, state: State) -> Mapping[str, float]:
        return {} if self.node is None else dict(zip((self.low, self.high), state.paces, strict=True))

    def find_terms(self, state: State, left: Collection[str], in_flight: int) -> MoveTerms:
        """Returns the tokens that the engine to go to would generate while an answer moves, and its own prefill."""
        node = self.node
        if node is None:
            return TwoBackends.find_terms(self, state, left, in_flight)
        node = node.at_paces(state.paces)
        to = node.low if self.high in left else node.high
        pause_s = self._find_pause(to, node, node.prompt_tokens + node.answer_tokens / 2)
        return MoveTerms(math.ceil(pause_s / to.step_s(max(in_flight, 1))), to.prefill_tokens_per_s)

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        backend = self._find_cheaper(request, loads, state) if state.is_split else state.side
        in_flight = request.sequences
        for load in loads.values():
            in_flight += load.in_flight
        is_ready = loads[backend].is_ready
        to = backend if is_ready else self.find_ready(loads)
        if self.node is None:
            route = _make_fallback(to, in_flight)
        else:
            plan = "split" if state.is_split else state.side
            route = _make_route(to, in_flight, plan, self.objective, (state.rate, state.answer_s))
        return route if is_ready else replace(route, reason=f"{route.reason} {backend}=unavailable"), state

    def plan(self, demand: Demand, state: State, now: float) -> State:
        if self.node is None:
            return state
        state = self._learn(self.node, demand, state)
        node, rate = self.node.at_paces(state.paces), find_rate(demand.arrivals, self.evidence)
        state = replace(state, rate=rate, usual_rate=_find_usual(state.usual_rate, rate, _beat_s(demand)))
        weighed = self._weigh(node, demand, state)
        planned = self._decide(weighed, node, demand, state, now)
        plan = self._name_plan(planned)
        answer_s = self._predict(node, demand, rate, 1.0) if plan == (self.low, False) else weighed[plan]
        return replace(planned, rate=_round(rate), answer_s=_round(answer_s))

    def _decide(
        self, weighed: Mapping[Plan, float], node: NodeModel, demand: Demand, state: State, now: float
    ) -> State:
        """Returns the state with the plan to follow: the present one, until another pays the price of the change."""
        current, best = self._name_plan(state), min(weighed, key=lambda plan: weighed[plan])
        if current in weighed:
            saved_s = weighed[current] - weighed[best] if best != current else _find_lead(weighed, current)
            foregone_s = max(state.foregone_s + saved_s * state.rate * _beat_s(demand), 0.0)
            state = replace(state, foregone_s=foregone_s)
            if best == current or saved_s <= self.margin * weighed[current] or now - state.since < self.dwell_s:
                return state
            soon_s = saved_s * (state.rate * self.horizon_s + demand.in_flight * self._objective.running)
            if soon_s + foregone_s <= self._find_price(node, demand, state.rate, best):
                return state
        side, is_split = best
        return replace(state, side=side, is_split=is_split, since=now, foregone_s=0.0)

    def _name_plan(self, state: State) -> Plan:
        return self.low if state.is_split else state.side, state.is_split

    def _learn(self, node: NodeModel, demand: Demand, state: State) -> State:
        """Compares the model with what both backends have generated since the last beat."""
        backends, shape = (demand.backends[self.low], demand.backends[self.high]), _find_shape(node, demand)
        times = answers_s(node, shape, *(backend.in_flight for backend in backends))
        low, high = (
            look(seen, backend, time_s / shape.answer_tokens, _beat_s(demand))
            for seen, backend, time_s in zip(state.seen, backends, times, strict=True)
        )
        usual = node.crossing
        tokens_per_s = (usual / node.low.step_s(usual), usual / node.high.step_s(usual))
        return replace(state, seen=(low, high), paces=find_paces((low, high), tokens_per_s))

    def _weigh(self, node: NodeModel, demand: Demand, state: State) -> Mapping[Plan, float]:
        """Predicts the seconds of an answer under each plan, to choose between them.

        On shared GPUs the low-load engine gets nothing without headroom: who leaves it late has the more to move.
        """
        is_shared, rate = node.interference >= SHARED, state.rate
        if is_shared:
            node = node.at_headroom(self._find_headroom(state))
        weighed = {(self.low, False): self._predict(node, demand, rate, 1.0)}
        weighed[self.high, False] = self._predict(node, demand, rate, 0.0)
        if not is_shared:
            weighed[self.low, True] = min(self._predict(node, demand, rate, share) for share in SPLITS)
        return weighed

    def _find_headroom(self, state: State) -> float:
        """Returns which part more may soon be in flight than is now.

        What a rate has grown by, beyond chance, it may grow by again. Who is on the high-load engine looks further: it
        takes two changes to find out that the way to the other one did not pay.
        """
        chance = self.evidence / math.sqrt(MOST_S * state.rate) if state.rate else 0.0
        growth = state.rate / state.usual_rate - 1 - chance if state.usual_rate else 0.0
        least = self.headroom if state.side == self.high else 0.0
        return max(round(min(growth, MOST_GROWTH) / GRAIN) * GRAIN, least)

    def _predict(self, node: NodeModel, demand: Demand, rate: float, share: float) -> float:
        """Predicts the seconds of an answer where the low-load engine gets `share` of what is free to move."""
        low, high = demand.backends[self.low], demand.backends[self.high]
        free_rate = rate * max(1 - low.fixed_share - high.fixed_share, 0.0)
        free = low.in_flight - low.fixed + high.in_flight - high.fixed
        return predict_s(
            node,
            _find_shape(node, demand),
            Part(rate * low.fixed_share + free_rate * share, low.fixed + free * share),
            Part(rate * high.fixed_share + free_rate * (1 - share), high.fixed + free * (1 - share)),
            self._objective,
        )

    @property
    def _objective(self) -> Objective:
        return ANSWER if self.objective == "answer" else TTFT

    def _find_price(self, node: NodeModel, demand: Demand, rate: float, to: Plan) -> float:
        """Returns the seconds that requests lose by a change: the pause of what moves now, and of what moves back.

        What is in flight beyond the crossing has come while the plan waited, and does not make its change dearer. Who
        goes to the low-load engine goes back when the load rises: a rise shows when half of the crossing has come.
        """
        if to[1] or node.interference < SHARED:
            return 0.0  # nothing moves
        context = sum(demand.backends[name].context for name in (self.low, self.high) if name != to[0])
        if to[0] == self.high:
            moved = min(demand.in_flight, node.crossing)
            pause_s = self._find_pause(node.high, node, context * moved / max(demand.in_flight, 1))
            return self._find_loss(pause_s, moved, rate)
        back = node.crossing * BACK
        each = demand.prompt_tokens + (demand.answer_tokens or node.answer_tokens) / 2
        there_s, back_s = self._find_pause(node.low, node, context), self._find_pause(node.high, node, back * each)
        return self._find_loss(there_s, demand.in_flight, rate) + self._find_loss(back_s, back, rate)

    def _find_loss(self, pause_s: float, moved: float, rate: float) -> float:
        """Returns the seconds that a pause costs: who moves waits for its end, and has its first token already."""
        return pause_s * moved if self.objective == "answer" else pause_s * rate * pause_s / 2

    def _find_pause(self, to: EngineModel, node: NodeModel, context: float) -> float:
        """Returns the seconds without a token: while the prompts of what moves are prefilled, nobody gets any."""
        return node.move_s + context / to.prefill_tokens_per_s

    def _find_cheaper(self, request: Placeable, loads: Mapping[str, Load], state: State) -> str:
        low, high = loads[self.low], loads[self.high]
        if self.node is None or not (low.is_ready and high.is_ready):
            return self.low if low.is_ready else self.high
        node = self.node.at_paces(state.paces)
        low_s = self._find_cost(request, node, node.low, low.in_flight)
        return self.low if low_s <= self._find_cost(request, node, node.high, high.in_flight) else self.high

    def _find_cost(self, request: Placeable, node: NodeModel, engine: EngineModel, in_flight: int) -> float:
        """Returns the seconds that a request takes on an engine, and that its prefill takes from each of the others.

        By its own time alone, long prompts go to the engine that reads them faster, and stop all who run there.
        """
        in_flight += request.sequences
        prefill_s = max(request.prompt_tokens - node.prompt_tokens, 0) / engine.prefill_tokens_per_s
        if self.objective == "ttft":
            own_s = engine.ttft_s(in_flight)
        else:
            own_s = min(request.max_tokens or math.inf, node.answer_tokens) * engine.step_s(in_flight)
        return own_s + in_flight * prefill_s


def _find_usual(usual_rate: float, rate: float, elapsed_s: float) -> float:
    return rate + (usual_rate - rate) * math.exp(-elapsed_s / USUAL_S) if usual_rate else rate


def _find_lead(weighed: Mapping[Plan, float], current: Plan) -> float:
    """Returns by how many seconds the present plan is better than the next best, as a number below 0."""
    return weighed[current] - min(value for plan, value in weighed.items() if plan != current)


def _find_shape(node: NodeModel, demand: Demand) -> Shape:
    """Returns recent requests' lengths, without the prompts that are part of the model's steps."""
    return Shape(max(demand.prompt_tokens - node.prompt_tokens, 0.0), demand.answer_tokens or node.answer_tokens)


def _beat_s(demand: Demand) -> float:
    return demand.arrivals[-1].at - demand.arrivals[-2].at if len(demand.arrivals) > 1 else 0.0


def _round(number: float) -> float:
    """Returns three digits of it: what a reader needs, and few enough numbers for few different reasons."""
    return float(f"{number:.3g}")


@lru_cache(maxsize=1024)
def _make_fallback(backend: str, in_flight: int) -> Route:
    return Route(backend, f"curve fallback={backend} in_flight={in_flight} node=unknown")


# The same few routes again and again: making one takes ten times as long as finding it, and a state's own hash as long.
@lru_cache(maxsize=4096)
def _make_route(backend: str, in_flight: int, plan: str, objective: str, expected: tuple[float, float]) -> Route:
    shown, (rate, time_s) = plan if plan == "split" else f"all={plan}", expected
    return Route(backend, f"curve {shown} in_flight={in_flight} rate={rate:g}/s {objective}={time_s:g}s")
