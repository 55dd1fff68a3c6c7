"""What the policies are worth on simulated nodes: public traces, several truths, right and wrong models.

In: pairs of engines, thinnings of published traces. Out: a table of mean answer times over those of the better engine
alone. `python -m tests.routing.study` (some 30 minutes on two cores); `--fast` for a look.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from random import Random
from typing import TypeAlias

from engines.physics import EngineModel, Job, Mix, Replica
from engines.physics.forecast import find_settled_s
from engines.reference.pairs import load_pairs
from engines.simulation import Engine, MakeReplica, Node, NodeSpec
from gateway.commands.policy_router import PolicyRouter
from gateway.core import Policy
from gateway.routing.policies import NodeModel, read_policy
from loadtest.decide.closed_load import Load
from loadtest.decide.engine_fit import Measured, find_misfits, fit_engine
from loadtest.decide.node_cells import LONGEST, list_prompts
from loadtest.lab.identification import forget, list_plan
from loadtest.rehearsal.find_trace import PUBLISHED
from loadtest.rehearsal.reshape import Reshape, reshape
from loadtest.rehearsal.trace_file import read_trace
from loadtest.rehearsal.traces import TRACES, TraceRequest, Variant, make_trace
from loadtest.rehearsal.traces import Pair as TracePair
from loadtest.results.plan import QUICK
from tests.routing.truths import MakeNode, PromptsFirst, SumNode

LOW, HIGH = "low", "high"
RATES = (0.6, 1.0, 1.4)
SECONDS = 50.0
# Of one trace each: its source, what is made of it, and its peak for the pair on two GPUs; half of it for one GPU.
PUBLIC: Mapping[str, tuple[str, Reshape, float]] = {
    "chat": ("azure-chat", Reshape(scale_prompt=0.25), 59.0),
    "conversations": ("azure-chat", Reshape(), 33.0),
    "mooncake": ("mooncake-chat", Reshape(max_prompt=8000), 10.0),
}
OWN = ("ramp", "step", "bursts", "day")
OWN_SHAPES = ((80, 128), (152, 128))
OFF = 1.3
MOST_S = 20.0  # a better engine that takes longer is overloaded throughout


@dataclass(frozen=True, slots=True)
class Truth:
    """What really runs. `own`: whose numbers the engines have, "pair" or those of an earlier fit."""

    make_node: MakeNode = Node
    make_replica: MakeReplica = Replica
    is_earlier: bool = False
    is_known: bool = True  # policies may be given the truth's own numbers


TRUTHS: Mapping[str, Truth] = {
    "physics": Truth(),
    "earlier fit": Truth(SumNode, is_earlier=True),
    "prompts first": Truth(make_replica=PromptsFirst, is_known=False),
}

# Fitted by hand to measurements on H200 before the pairs of engines/reference/pairs.json.
EARLIER: Mapping[str, tuple[EngineModel, EngineModel, float]] = {
    "tp-dp": (
        EngineModel(((1, 3.32), (8, 3.85), (32, 4.94), (64, 5.3), (96, 6.09), (160, 7.67), (320, 10.2)),
                    0.0157, 13.2, 0.35, 22.5, 9.7, 11.3),
        EngineModel(((1, 4.7), (4, 4.79), (16, 5.03), (32, 5.19), (48, 5.4), (80, 5.8), (160, 6.8)),
                    0.0397, 19.3, 0.81, 24.4, 8.1, 11.3, replicas=2),
        1.5,
    ),
    "spec-plain": (
        EngineModel(((1, 6.22), (8, 6.48), (32, 8.76), (64, 11.65), (128, 18.6), (256, 32.8)),
                    0.035, 19.7, 0.8, 33.2, 9.6, 11.3, tokens_per_step=2.5, verified=4),
        EngineModel(((1, 4.78), (8, 4.78), (32, 5.24), (64, 6.47), (128, 7.26), (256, 8.39)),
                    0.035, 18.8, 0.8, 20.1, 8.0, 11.3),
        1.1,
    ),
    "tpspec-dp": (
        EngineModel(((1, 4.68), (8, 6.33), (32, 7.48), (64, 7.6), (96, 8.0), (160, 9.0)),
                    0.0125, 12.3, 0.28, 34.8, 11.7, 11.3, tokens_per_step=2.5, verified=4),
        EngineModel(((1, 4.7), (4, 4.79), (16, 5.03), (32, 5.19), (48, 5.4), (80, 5.8), (160, 6.8)),
                    0.0397, 19.3, 0.81, 24.4, 8.1, 11.3, replicas=2),
        1.1,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    truth: str
    pair: str
    trace: str
    rate: float
    seed: int


Row: TypeAlias = tuple[Case, dict[str, tuple[float, int]]]  # by arm: mean seconds, changes


@lru_cache
def find_node(pair: str, is_earlier: bool) -> NodeModel:
    """Returns the numbers of a pair; of "low better" and "high better" one engine is 1.15 times as slow."""
    if pair in {"low better", "high better"}:
        best = load_pairs()["tp-dp"].engines["low"]
        engines = (best, best.slowed(1.15)) if pair == "low better" else (best.slowed(1.15), best)
        return NodeModel(*engines, 1.4, 80, 128, move_s=0.013)
    if is_earlier:
        low, high, interference = EARLIER[pair]
        return NodeModel(low, high, interference, 80, 128, move_s=0.013)
    known = load_pairs()[pair]
    return NodeModel(known.engines["low"], known.engines["high"], known.interference, 80, 128, move_s=0.013)


def find_trace(case: Case) -> Sequence[TraceRequest]:
    share = 0.5 if case.pair == "spec-plain" else 1.0
    if case.trace in PUBLIC:
        source, how, peak = PUBLIC[case.trace]
        peak *= case.rate * share
        return reshape(_read(source), replace(how, peak=peak, seconds=SECONDS), case.seed)[0]
    name, _, shape = case.trace.partition(" ")
    prompt, answer = map(int, shape.split("x"))
    node = find_node(case.pair, TRUTHS[case.truth].is_earlier)
    pair = TracePair.of({LOW: asdict(node.low), HIGH: asdict(node.high)}, prompt, answer)
    variant = Variant.parse(name)
    assert variant is not None
    return make_trace(variant, pair, case.seed)


@lru_cache
def _read(source: str) -> Sequence[TraceRequest]:
    return read_trace(PUBLISHED[source])


class Alone:
    beat_s = 1.0
    changes = 0

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        return self._engine

    def began(self, job: Job, engine: str, now: float) -> None: ...

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: Mapping[str, Engine], now: float) -> Sequence[tuple[Job, str]]:
        return ()


def serve(case: Case, trace: Sequence[TraceRequest], router: Alone | PolicyRouter) -> tuple[float, int]:
    truth = TRUTHS[case.truth]
    node = find_node(case.pair, truth.is_earlier)
    spec = NodeSpec({LOW: node.low, HIGH: node.high}, node.interference, node.move_s, truth.make_replica)
    world = truth.make_node(spec, router)
    jobs = [Job(each.at, each.prompt_tokens, each.tokens) for each in trace]
    for job in jobs:
        world.run(job.at)
        world.arrive(job)
    world.run(math.inf)
    return statistics.fmean((job.end_s or math.nan) - job.at for job in jobs), router.changes


def make_policy(node: NodeModel, **keys: object) -> Policy:
    return read_policy({"kind": "curve", "low": LOW, "high": HIGH, "node": asdict(node), **keys})


def make_threshold(node: NodeModel) -> Policy:
    """As a calibration with its first shape sets it, a sixth to each side of the crossing."""
    mix = Mix.of([node.prompt_tokens], node.answer_tokens)
    level = next((n for n in range(1, 400) if find_settled_s(node.high, mix, n) < find_settled_s(node.low, mix, n)), 400)
    return read_policy(
        {"kind": "threshold", "low": LOW, "high": HIGH, "up": max(round(level * 7 / 6), 2), "down": round(level * 5 / 6),
         "moves": True}
    )  # fmt: skip


def distort(engine: EngineModel, draw: Random) -> EngineModel:
    """Makes every number 30 % too large or too small."""

    def off() -> float:
        return OFF ** draw.choice((-1, 1))

    decode = off()
    return replace(
        engine,
        steps_ms=tuple((count, ms * decode) for count, ms in engine.steps_ms),
        **{name: getattr(engine, name) * off()
           for name in ("context_ms", "prompt_ms", "attention_ms", "eager_ms", "mixed_ms", "request_ms")},
    )  # fmt: skip


@lru_cache
def calibrate(truth: str, pair: str, seed: int) -> NodeModel:
    """Fits the node as a quick calibration of the truth does."""
    node, draw = find_node(pair, TRUTHS[truth].is_earlier), Random(f"{truth} {pair} {seed}")
    fits = []
    for engine in node:
        cells = [_measure(engine, load, TRUTHS[truth].make_replica, draw) for load in list_plan(QUICK)]
        for prompt in list_prompts(LONGEST):
            first_ms = _measure(engine, Load(prompt, 2, 1), TRUTHS[truth].make_replica, draw).first_ms
            cells.append(Measured(Load(prompt, 2, 1), first_ms))
        fit = fit_engine(cells, replace(forget(engine), kv_tokens=engine.kv_tokens))
        fits.append((fit.engine, max(find_misfits(cells, fit).values(), default=0.0)))
    (low, low_error), (high, high_error) = fits
    return replace(node, low=low, high=high, low_error=low_error, high_error=high_error)


def _measure(engine: EngineModel, load: Load, make_replica: MakeReplica, draw: Random) -> Measured:
    """Runs a closed loop of the truth: its mean times, with 3 % of scatter."""
    node = Node(NodeSpec({LOW: engine, HIGH: engine}, make_replica=make_replica), Alone(LOW))
    jobs, ended, scatter = [], list[Job](), draw.lognormvariate(0, 0.03)
    for index in range(load.in_flight):
        jobs.append(node.arrive(Job(0.0, load.prompt_tokens, 1 + load.answer_tokens * (index + 1) // load.in_flight)))
    now, warm = 0.0, 2 * load.in_flight
    while len(ended) < warm + max(4 * load.in_flight, 8):
        now = node.find_next()
        for job in node.go_on():
            ended.append(job)
            tokens = max(round(load.answer_tokens * draw.lognormvariate(-0.02, 0.2)), 2) if load.in_flight > 1 else load.answer_tokens
            node.arrive(Job(now, load.prompt_tokens, tokens))
    usable = ended[warm:]
    first_ms = 1e3 * statistics.fmean((job.first_s or 0.0) - job.at for job in usable) + engine.request_ms / 2
    token_ms = 1e3 * sum((job.end_s or 0) - (job.first_s or 0) for job in usable) / sum(job.tokens - 1 for job in usable)
    return Measured(load, first_ms * scatter, (first_ms + (load.answer_tokens - 1) * token_ms) * scatter)


def run(case: Case, arms: Sequence[str]) -> Row:
    trace = find_trace(case)
    truth = TRUTHS[case.truth]
    node = find_node(case.pair, truth.is_earlier)
    results = {name: serve(case, trace, Alone(name)) for name in (LOW, HIGH)}
    for arm in arms:
        results[arm] = serve(case, trace, PolicyRouter(_find_policy(arm, case, node), (LOW, HIGH)))
    return case, results


def _find_policy(arm: str, case: Case, node: NodeModel) -> Policy:
    kind, *terms = arm.split()
    keys = {key: json.loads(value) for key, _, value in (term.partition("=") for term in terms)}
    if kind == "threshold":
        return make_threshold(node)
    if kind == "fitted":
        return make_policy(calibrate(case.truth, case.pair, case.seed % 2), **keys)
    if kind == "off":
        draw = Random(f"{case}")
        return make_policy(replace(node, low=distort(node.low, draw), high=distort(node.high, draw)), **keys)
    return make_policy(node, **keys)


def list_cases(given: argparse.Namespace) -> Iterator[Case]:
    own = [f"{name} {prompt}x{answer}" for name in OWN[:3] for prompt, answer in OWN_SHAPES] if given.own else []
    for truth in given.truths:
        for pair in given.pairs:
            if TRUTHS[truth].is_earlier != (pair in EARLIER and TRUTHS[truth].is_earlier):
                continue
            if pair == "tpspec-dp" and not TRUTHS[truth].is_earlier:
                continue
            traces = [(trace, rate) for trace in given.traces for rate in RATES] + [(trace, 1.0) for trace in own]
            for seed in range(1, given.seeds + 1):
                yield from (Case(truth, pair, trace, rate, seed) for trace, rate in traces)


def describe(rows: Sequence[Row], arms: Sequence[str], detail: bool) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row[0].truth, row[0].pair), []).append(row)
    for (truth, pair), own in groups.items():
        for arm in arms:
            cells: dict[tuple[str, float], list[float]] = {}
            changes = []
            for case, results in own:
                best_s = min(results[LOW][0], results[HIGH][0])
                if best_s < MOST_S:
                    cells.setdefault((case.trace, case.rate), []).append(results[arm][0] / best_s)
                    changes.append(results[arm][1])
            ratios = [ratio for cell in cells.values() for ratio in cell]
            means = {cell: statistics.fmean(found) for cell, found in cells.items()}
            worst = max(means, key=lambda cell: means[cell])
            yield (f"{truth:14} {pair:11} {arm:28} mean {statistics.fmean(ratios):.3f}  worst cell {means[worst]:.3f} "
                   f"({worst[0]} x{worst[1]:g})  95 % {sorted(ratios)[math.ceil(0.95 * len(ratios)) - 1]:.3f}  "
                   f"most {max(ratios):.3f}  n {len(ratios)}  changes {statistics.fmean(changes):.1f}")  # fmt: skip
            if detail:
                for cell, mean in means.items():
                    singles = [(r[LOW][0], r[HIGH][0], r[arm][0], r[arm][1]) for c, r in own if (c.trace, c.rate) == cell]
                    low, high, routed, changed = (statistics.fmean(x) for x in zip(*singles, strict=True))
                    yield f"      {cell[0]:16} x{cell[1]:<4g} {mean:.3f} (most {max(cells[cell]):.3f})  low {low:.2f} high {high:.2f} routed {routed:.2f} changes {changed:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truths", nargs="*", default=list(TRUTHS))
    parser.add_argument("--pairs", nargs="*", default=["tp-dp", "spec-plain", "tpspec-dp", "low better", "high better"])
    parser.add_argument("--traces", nargs="*", default=list(PUBLIC))
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--arms", nargs="*", default=["curve", "fitted", "off", "threshold"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--detail", action="store_true")
    given = parser.parse_args()
    cases = list(list_cases(given))
    with ProcessPoolExecutor(given.workers) as pool:
        rows = []
        for number, row in enumerate(pool.map(run, cases, [given.arms] * len(cases)), 1):
            rows.append(row)
            if number % 20 == 0:
                print(f"{number} of {len(cases)}", file=sys.stderr, flush=True)
    for line in describe(rows, given.arms, given.detail):
        print(line)


if __name__ == "__main__":
    main()
