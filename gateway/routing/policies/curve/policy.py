"""The policy that predicts: from a physical model of the node, the plan that serves the coming load in the least time.

In: demand, a node model, and the plan so far. Out: a plan, and routes that follow it.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from engines.physics.forecast import HORIZON_S
from gateway.core import Capacity, Demand, Kept, Load, MoveTerms, Placeable, Route, State
from gateway.routing.policies.curve import learning, split, trying
from gateway.routing.policies.curve.load import Load as NodeLoad
from gateway.routing.policies.curve.memory import ANSWER_S, ANSWER_TOKENS, ENGINE_WORDS, RATE, Memory
from gateway.routing.policies.curve.node_model import OLDER, NodeModel, is_older
from gateway.routing.policies.curve.planner import Planner, Rules
from gateway.routing.policies.curve.rate import find_rate
from gateway.routing.policies.two_backends import TwoBackends
from gateway.settings import Flag, number

BEYOND = 9 / 8  # of the sequences that an engine is known to run at once it gets: else nobody sees that it runs more
PREFILL_S = 1.0  # of prompts that wait on an engine: what waits longer waits in the queue, where it may be passed
UNCACHED = 1.0  # of its calibrated time a prompt may need, whatever an engine's cache has spared of late
SHARED = 0.5  # engines that interfere so much are not used both: each would run at the pace of the two together
FORECASTS = 5.0  # after which one counts a third


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of both engines, and the digest of the node model beside which it holds."""

    node: str
    low: learning.Learned | None
    high: learning.Learned | None


_LEARNED = TypeAdapter(Learned)


@dataclass(frozen=True, slots=True)
class Curve(TwoBackends):
    """Goes over to the other engine when that is predicted to save more time, within horizon_s, than the change costs.

    On engines that share their GPUs all requests are on one side, and running answers follow a change. On GPUs of their
    own both are used, and each request goes where it costs all requests least. Without `node` all go to `fallback`.
    """

    kind: ClassVar[str] = "curve"

    node: Annotated[NodeModel | None, Field(description="What a calibration measured of the two engines.")] = None
    fallback: Annotated[
        Literal["low", "high"], Field(description="Which backend gets all requests while there is no node model.")
    ] = "high"
    objective: Annotated[
        Literal["answer", "ttft"], Field(description="What is to be short: whole answers, or the time to first tokens.")
    ] = "answer"
    horizon_s: Annotated[
        float, number(0, 600, "A change has to pay within this many seconds; sooner where peaks have been short.")
    ] = 8.0
    headroom: Annotated[
        float, number(0, 10, "Plans are made for this part more arrivals than there are, on either engine.")
    ] = 0.1
    margin: Annotated[float, number(0, 1, "A change has to save more than this part of an answer's time.")] = 0.1
    evidence: Annotated[
        float, number(0, 100, "How many standard deviations later arrivals must be off for earlier ones not to count.")
    ] = 4.5
    dwell_s: Annotated[float, number(0, 3600, "Keep a plan for at least this many seconds.")] = 0.3
    learns: Annotated[Flag, Field(description="Whether live steps correct the node model, and a guard takes back.")] = (
        True
    )
    tries: Annotated[
        Flag,
        Field(description="Whether the engine not used gets all for 5 s in a quiet minute, to see how fast it is."),
    ] = True

    @classmethod
    def renew(cls, keys: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:  # Any: JSON of an earlier version
        """Leaves out a node model of the older form, and the keys that meant something else beside it."""
        if not is_older(keys.get("node")):
            return keys, None
        kept = {key: value for key, value in keys.items() if key not in {"node", "headroom", "horizon_s"}}
        return kept, f"its node model {OLDER}; until then all requests go to its `fallback`"

    def __str__(self) -> str:
        shown = {key: value for key, value in self.keys().items() if key != "node"}
        known = "unknown" if self.node is None else "measured"
        return " ".join((self.kind, *(f"{key}={value}" for key, value in shown.items()), f"node={known}"))

    def keys(self) -> Mapping[str, object]:
        return {**TwoBackends.keys(self), "node": None if self.node is None else asdict(self.node)}

    @property
    def plans(self) -> bool:
        return self.node is not None

    @property
    def splits(self) -> bool:
        return self.node is not None and self.node.interference < SHARED

    def max_in_flight(self, backend: str) -> int | None:
        if self.node is None:
            return None
        low, high = (engine.max_sequences * engine.replicas for engine in self.node)
        return {self.low: low, self.high: high}.get(backend)

    def find_capacity(self, backend: str, state: State) -> Capacity | None:
        node = self.node
        if node is None or backend not in {self.low, self.high}:
            return None
        memory, index = Memory.read(state.words), int(backend == self.high)
        engine, seen = learning.correct(node, memory, UNCACHED)[index], memory.engines[index]
        prefill = 1e6 * PREFILL_S * engine.replicas / engine.prompt_ms if engine.prompt_ms else math.inf
        most = BEYOND * (seen.max_sequences or engine.max_sequences)
        return Capacity(math.ceil(most) * engine.replicas, prefill)

    @property
    def spills(self) -> bool:
        """On shared GPUs another engine would slow down this one, and all would take longer."""
        return self.node is None or self.splits

    def start(self, version: int, now: float, side: str | None = None) -> State:
        if self.node is None:
            return State({"low": self.low, "high": self.high}[self.fallback], now, version)
        known = side if side in {self.low, self.high} else None
        return State(known or self.low, now - self.dwell_s, version, Memory().words())

    def find_left(self, state: State) -> Collection[str]:
        """Answers on engines that do not interfere stay where they are: both go on at their own pace."""
        return () if self.node is None or self.splits else {self.low, self.high} - {state.side}

    def find_kept(self, state: State) -> Kept | None:
        if self.node is None or not state.words:
            return None
        low, high = map(learning.Learned.of, Memory.read(state.words).engines)
        return asdict(Learned(_digest(self.node), low, high)) if low or high else None

    def resume(self, state: State, kept: Kept) -> State:
        if self.node is None or not self.learns:
            return state
        try:
            learned = _LEARNED.validate_python(kept)
        except ValidationError as exc:
            raise ValueError("what was learned has another form") from exc
        memory = Memory.read(state.words)
        if learned.node != _digest(self.node):
            raise ValueError("it was learned beside another node model")
        for own, engine in zip((learned.low, learned.high), memory.engines, strict=True):
            if own is not None:
                own.resume(engine)
        return replace(state, words=memory.words())

    def readings(self, state: State) -> Mapping[str, Mapping[str, float]]:
        if self.node is None or not state.words:
            return {}
        memory = Memory.read(state.words)
        wrong = [learning.is_wrong(engine) for engine in memory.engines]
        return {
            name: {
                "decode_scale": round(seen.decode, 3),
                "prefill_scale": round(seen.prefill, 3),
                "step_error": round(seen.error, 3),
                "step_misfit": round(seen.misfit, 3),
                "forecast_error": round(memory.forecast_error, 3),
                "model_wrong": float(is_wrong),
                "max_sequences": float(round(seen.max_sequences or engine.max_sequences)),
            }
            for name, engine, seen, is_wrong in zip(
                (self.low, self.high), self.node, memory.engines, wrong, strict=True
            )
            if seen.windows
        }

    def find_terms(self, state: State, left: Collection[str], in_flight: int) -> MoveTerms:
        """Returns the tokens that the engine to go to would generate while an answer moves, and its own prefill."""
        node = self.node
        if node is None:
            return MoveTerms()
        low, high = learning.correct(node, Memory.read(state.words), learning.LEAST)
        to = low if self.high in left else high
        context = node.prompt_tokens + node.answer_tokens / 2
        pause_ms = 1e3 * node.move_s + to.prefill_ms(context, 0.0)
        each = max(in_flight, 1) / to.replicas
        tokens_per_s = 1e6 * to.replicas / to.prompt_ms if to.prompt_ms else math.inf
        return MoveTerms(math.ceil(pause_ms * to.tokens_per_step / to.decode_ms(each, each * context)), tokens_per_s)

    def find_step_s(self, backend: str, state: State, streams: int, waiting: float) -> float | None:
        node = self.node
        if node is None or backend not in {self.low, self.high}:
            return None
        engine = learning.correct(node, Memory.read(state.words), UNCACHED)[int(backend == self.high)]
        each = streams / engine.replicas
        step_ms = engine.decode_ms(each, each * (node.prompt_tokens + node.answer_tokens))
        step_ms += engine.prefill_ms(waiting / engine.replicas, waiting**2 / max(streams, 1) / engine.replicas)
        return (1 + node.interference) * (max(step_ms, engine.eager_ms) + engine.request_ms) / 1e3

    def choose(self, request: Placeable, loads: Mapping[str, Load], state: State, now: float) -> tuple[Route, State]:
        node, words = self.node, state.words
        is_split = node is not None and node.interference < SHARED
        backend = self._find_cheaper(request, loads, words) if is_split else state.side
        in_flight = request.sequences
        for load in loads.values():
            in_flight += load.in_flight
        is_ready = loads[backend].is_ready
        to = backend if is_ready else self.find_ready(loads)
        if node is None or not words:
            route = _make_fallback(to, in_flight)
        else:
            plan = "split" if is_split else backend
            route = _make_route(to, in_flight, plan, self.objective, words[RATE], words[ANSWER_S])
        return route if is_ready else replace(route, reason=f"{route.reason} {backend}=unavailable"), state

    def plan(self, demand: Demand, state: State, now: float) -> State:
        node = self.node
        if node is None:
            return state
        memory = Memory.read(state.words)
        memory.rate = find_rate(demand.arrivals, self.evidence)
        load = NodeLoad.of(demand, (self.low, self.high), node, memory.rate)
        side = int(state.side == self.high)
        trying.note_use(memory, side, now)
        if self.learns:
            self._learn(memory, load)
        engines, movers = learning.correct(node, memory), learning.correct(node, memory, learning.LEAST)
        planner = Planner(self._rules, node, engines, movers)
        self._compare(memory, load, now)
        to = side
        if self.splits:
            self._note_split(memory, planner, load)
        else:
            to = planner.decide(memory, load, side, state.since, now)
        if to != side:
            memory.owed_s = memory.price_s = memory.foreseen = memory.behind_since = 0.0
        if demand.arrivals[0].total:  # else a rate is not known yet
            self._foresee(memory, planner, load, to, now)
        memory.rate, memory.answer_s = _round(memory.rate), _round(memory.answer_s)
        return State((self.low, self.high)[to], state.since if to == side else now, state.version, memory.words())

    @property
    def _rules(self) -> Rules:
        learns, tries = self.learns, self.tries and self.learns
        return Rules(self.objective, self.horizon_s, self.headroom, self.margin, self.dwell_s, learns, tries)

    def _learn(self, memory: Memory, load: NodeLoad) -> None:
        assert self.node is not None  # plan has looked
        for index, (engine, seen) in enumerate(zip(self.node, memory.engines, strict=True)):
            learning.begin(seen)
            is_alone = self.splits or not load.backends[1 - index].in_flight
            learning.learn(seen, engine, load.backends[index], load.elapsed_s, is_alone)

    def _compare(self, memory: Memory, load: NodeLoad, now: float) -> None:
        """Compares what was foreseen with what came, when its time has come."""
        if not memory.foreseen or now < memory.foreseen_at:
            return
        memory.forecasts += 1 - memory.forecasts / FORECASTS
        off = math.log(max(load.in_flight, 0.5) / memory.foreseen)
        memory.forecast_error += (off - memory.forecast_error) / memory.forecasts
        memory.foreseen = 0.0

    def _foresee(self, memory: Memory, planner: Planner, load: NodeLoad, side: int, now: float) -> None:
        if not memory.foreseen and load.in_flight and not self.splits:
            memory.foreseen = planner.weigh(load, side, 0.0).end
            memory.foreseen_at = now + HORIZON_S

    def _note_split(self, memory: Memory, planner: Planner, load: NodeLoad) -> None:
        memory.answer_tokens = load.mix.answer_tokens
        shares = [backend.in_flight / max(load.in_flight, 1) for backend in load.backends]
        total = 0.0
        for index, (engine, seen) in enumerate(zip(planner.engines, memory.engines, strict=True)):
            split.note(seen, engine, load, index)
            steps = load.mix.answer_tokens / engine.tokens_per_step + 1
            step_ms = seen.step_ms + seen.slope_ms * load.backends[index].in_flight
            own_ms = 1.5 * step_ms if self.objective == "ttft" else steps * step_ms
            total += shares[index] * (own_ms + engine.request_ms)
        memory.answer_s = total / 1e3

    def _find_cheaper(self, request: Placeable, loads: Mapping[str, Load], words: tuple[float, ...]) -> str:
        low, high = loads[self.low], loads[self.high]
        if not (low.is_ready and high.is_ready) or not words:
            return self.low if low.is_ready else self.high
        low_ms = self._find_cost_ms(request, words, 0, low.in_flight)
        return self.low if low_ms <= self._find_cost_ms(request, words, 1, high.in_flight) else self.high

    def _find_cost_ms(self, request: Placeable, words: tuple[float, ...], index: int, in_flight: int) -> float:
        assert self.node is not None  # whoever splits has a model
        engine = self.node.high if index else self.node.low
        own = words[index * ENGINE_WORDS : (index + 1) * ENGINE_WORDS]
        if self.objective == "ttft":
            steps = 1.5
        else:
            tokens = words[ANSWER_TOKENS] or self.node.answer_tokens
            steps = min(request.max_tokens or math.inf, tokens) / engine.tokens_per_step
        in_flight += request.sequences - 1
        return split.find_cost_ms(own, engine, steps, request.prompt_tokens, in_flight)


def _digest(node: NodeModel) -> str:
    return blake2b(orjson.dumps(asdict(node)), digest_size=8).hexdigest()


def _round(number: float) -> float:
    """Returns three digits of it: what a reader needs, and few enough numbers for few different reasons."""
    return float(f"{number:.3g}")


@lru_cache(maxsize=1024)
def _make_fallback(backend: str, in_flight: int) -> Route:
    return Route(backend, f"curve fallback={backend} in_flight={in_flight} node=unknown")


# The same few routes again and again: making one takes ten times as long as finding it, and a state's own hash as long.
@lru_cache(maxsize=4096)
def _make_route(  # noqa: PLR0913, PLR0917 - a tuple of them would cost as much as finding the route
    backend: str, in_flight: int, plan: str, objective: str, rate: float, time_s: float
) -> Route:
    shown = plan if plan == "split" else f"all={plan}"
    return Route(backend, f"curve {shown} in_flight={in_flight} rate={rate:g}/s {objective}={time_s:g}s")
