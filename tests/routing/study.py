"""What policies are worth on simulated nodes: public traces, three truths, right and wrong models.

In: pairs of engines, thinnings of published traces. Out: mean answer times over those of the better engine alone.
`python -m tests.routing.study` takes some 40 minutes on two cores; `--seeds 1` for a look.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

from pydantic import TypeAdapter

from engines.physics import EngineModel, Job, Mix, Replica
from engines.physics.forecast import find_settled_s
from engines.reference.pairs import load_pairs
from engines.simulation import MakeReplica, Node, NodeSpec
from gateway.commands.policy_router import PolicyRouter
from gateway.commands.simulate import Alone, make_jobs, play
from gateway.core import Policy
from gateway.routing.policies import NodeModel, read_policy
from loadtest.decide.closed_load import Load
from loadtest.decide.engine_fit import Measured, find_misfits, fit_engine
from loadtest.decide.node_cells import LONGEST, list_prompts
from loadtest.lab.identification import ENGINES, NOISE, forget, list_plan
from loadtest.rehearsal.find_trace import PUBLISHED
from loadtest.rehearsal.reshape import Reshape, reshape
from loadtest.rehearsal.trace_file import read_trace
from loadtest.rehearsal.traces import Pair, TraceRequest, Variant, make_trace
from loadtest.results.plan import QUICK
from tests.routing.truths import MakeNode, PromptsFirst, SlowingNode, SumNode

LOW, HIGH = "low", "high"
RATES = (0.6, 1.0, 1.4)
SECONDS, MOVE_S = 50.0, 0.013
# Of a trace: its source, what is made of it, and its peak for engines on two GPUs; those on one get half.
PUBLIC: Mapping[str, tuple[str, Reshape, float]] = {
    "chat": ("azure-chat", Reshape(scale_prompt=0.25), 59.0),
    "conversations": ("azure-chat", Reshape(), 33.0),
    "mooncake": ("mooncake-chat", Reshape(max_prompt=8000), 10.0),
}
BURSTS, SHAPE = "bursts", (152, 128)
# Chats at one rate and another in turns, a second, each for so many seconds, for engines on two GPUs.
WAVES, LULL, PEAK, WAVE_S = "waves", 10.0, 120.0, 5.0
TRACES = (*PUBLIC, BURSTS)
OFF = 1.3
OVERLOADED_S = 20.0  # a trace that the better engine answers more slowly says nothing
CALIBRATIONS = 8  # of each node
ARMS = ("curve", "fitted", "off", "threshold")


@dataclass(frozen=True, slots=True)
class Truth:
    """What really runs. `is_earlier`: with the numbers that engines had before every step of them was measured."""

    make_node: MakeNode = Node
    make_replica: MakeReplica = Replica
    is_earlier: bool = False


TRUTHS: Mapping[str, Truth] = {
    "physics": Truth(),
    "earlier": Truth(SumNode, is_earlier=True),
    "prompts first": Truth(make_replica=PromptsFirst),
    "low slows": Truth(partial(SlowingNode, LOW)),
    "high slows": Truth(partial(SlowingNode, HIGH)),
}
USUAL = ("physics", "earlier", "prompts first")
EARLIER = {"tp-dp": ("TP 2", "DP 2", 1.5), "spec-plain": ("speculation", "plain", 1.1)}
MEASURED = "spec-plain calibrated"  # on a GPU, where a peak was taken for an overload
NODES = {MEASURED: Path(__file__).parents[2] / "docs/results/h200-spec-plain-fourth-node.json"}
ALWAYS = {"low better": (1.0, 1.15), "high better": (1.15, 1.0)}  # how many times tp-dp's low engine both are as slow
PAIRS = (*EARLIER, *ALWAYS)
ON_ONE_GPU = {"spec-plain", MEASURED}


@dataclass(frozen=True, slots=True)
class Case:
    truth: str
    pair: str
    trace: str
    rate: float
    seed: int
    seconds: float = SECONDS


class Result(NamedTuple):
    mean_s: float
    changes: int


Row: TypeAlias = tuple[Case, Mapping[str, Result]]


@lru_cache
def find_node(pair: str, *, is_earlier: bool) -> NodeModel:
    if pair in NODES:
        return TypeAdapter(NodeModel).validate_json(NODES[pair].read_bytes())
    if pair in ALWAYS:
        low, high = map(load_pairs()["tp-dp"].engines["low"].slowed, ALWAYS[pair])
        interference = load_pairs()["tp-dp"].interference
    elif is_earlier:
        low_name, high_name, interference = EARLIER[pair]
        low, high = ENGINES[low_name], ENGINES[high_name]
    else:
        known = load_pairs()[pair]
        low, high, interference = known.engines["low"], known.engines["high"], known.interference
    return NodeModel(low, high, interference, 80, 128, MOVE_S)


def find_trace(case: Case, node: NodeModel) -> Sequence[TraceRequest]:
    if case.trace == BURSTS:
        variant = Variant.parse(BURSTS)
        assert variant is not None
        return make_trace(variant, Pair.of({LOW: asdict(node.low), HIGH: asdict(node.high)}, *SHAPE), case.seed)
    share = 0.5 if case.pair in ON_ONE_GPU else 1.0
    if case.trace == WAVES:
        return list(make_waves(case, share))
    source, how, peak = PUBLIC[case.trace]
    return reshape(_read(source), replace(how, peak=peak * case.rate * share, seconds=case.seconds), case.seed)[0]


def make_waves(case: Case, share: float) -> Iterator[TraceRequest]:
    """Yields chats that arrive by chance, few and many a second in turns: a peak is over before it is an overload."""
    source, how, peak = PUBLIC["chat"]
    lengths, chance, at = reshape(_read(source), replace(how, peak=peak), case.seed)[0], Random(f"{case}"), 0.0
    while (at := at + chance.expovariate(share * (PEAK * case.rate if at // WAVE_S % 2 else LULL))) < case.seconds:
        yield replace(chance.choice(lengths), at=at, after=None)


@lru_cache
def _read(source: str) -> Sequence[TraceRequest]:
    return read_trace(PUBLISHED[source])


def run(case: Case, arms: Sequence[str]) -> Row:
    truth = TRUTHS[case.truth]
    node = find_node(case.pair, is_earlier=truth.is_earlier)
    trace = [replace(each, after=None) for each in find_trace(case, node)]  # so that all arms get the same arrivals
    routers: dict[str, Alone | PolicyRouter] = {LOW: Alone(LOW), HIGH: Alone(HIGH)}
    routers |= {arm: PolicyRouter(find_policy(arm, case, node), (LOW, HIGH)) for arm in arms}
    spec = NodeSpec({LOW: node.low, HIGH: node.high}, node.interference, node.move_s, truth.make_replica)
    results = {}
    for arm, router in routers.items():
        jobs = play(trace, make_jobs(trace, caches=False), truth.make_node(spec, router))
        results[arm] = Result(statistics.fmean((job.end_s or math.nan) - job.at for job in jobs), router.changes)
    return case, results


def find_policy(arm: str, case: Case, node: NodeModel) -> Policy:
    if arm == "threshold":
        return _make_threshold(node)
    if arm == "fitted":
        node = calibrate(case.truth, case.pair, case.seed % CALIBRATIONS)
    if arm == "off":
        chance = Random(f"{case}")
        node = replace(node, low=distort(node.low, chance), high=distort(node.high, chance))
    return read_policy({"kind": "curve", "low": LOW, "high": HIGH, "node": asdict(node)})


def _make_threshold(node: NodeModel) -> Policy:
    """As a calibration with the node's shape sets it: a sixth to each side of the crossing. Answers move."""
    mix = Mix.of([node.prompt_tokens], node.answer_tokens)
    levels = range(1, 400)
    level = next((n for n in levels if find_settled_s(node.high, mix, n) < find_settled_s(node.low, mix, n)), 400)
    up, down = max(round(level * 7 / 6), 2), round(level * 5 / 6)
    return read_policy({"kind": "threshold", "low": LOW, "high": HIGH, "up": up, "down": down, "moves": True})


def distort(engine: EngineModel, chance: Random) -> EngineModel:
    """Makes every number 30 % too large or too small."""
    decode, *rest = (OFF ** chance.choice((-1, 1)) for _ in range(7))
    names = ("context_ms", "prompt_ms", "attention_ms", "eager_ms", "mixed_ms", "request_ms")
    numbers = {name: getattr(engine, name) * factor for name, factor in zip(names, rest, strict=True)}
    return replace(engine, steps_ms=tuple((count, ms * decode) for count, ms in engine.steps_ms), **numbers)


@lru_cache
def calibrate(truth: str, pair: str, seed: int) -> NodeModel:
    """Fits the node's engines as a quick calibration of the truth does."""
    node, draw = find_node(pair, is_earlier=TRUTHS[truth].is_earlier), Random(f"{truth} {pair} {seed}")
    fits = []
    for engine in node:
        make_replica = TRUTHS[truth].make_replica
        cells = [_measure(engine, load, make_replica, draw) for load in list_plan(QUICK)]
        alone = [_measure(engine, Load(prompt, 2, 1), make_replica, draw) for prompt in list_prompts(LONGEST)]
        cells += [replace(cell, answer_ms=None) for cell in alone]
        fit = fit_engine(cells, replace(forget(engine), kv_tokens=engine.kv_tokens))
        fits.append((fit.engine, max(find_misfits(cells, fit).values(), default=0.0)))
    (low, low_error), (high, high_error) = fits
    return replace(node, low=low, high=high, low_error=low_error, high_error=high_error)


def _measure(engine: EngineModel, load: Load, make_replica: MakeReplica, draw: Random) -> Measured:
    """Runs a closed loop: its mean times, which scatter."""
    node = Node(NodeSpec({LOW: engine, HIGH: engine}, make_replica=make_replica), Alone(LOW))
    streams, tokens = load.in_flight, load.answer_tokens
    for index in range(streams):  # spread over an answer, so that they do not all end at once
        node.arrive(Job(0.0, load.prompt_tokens, 1 + tokens * (index + 1) // streams))
    ended = list[Job]()
    while len(ended) < 2 * streams + max(4 * streams, 8):
        now = node.find_next()
        for job in node.go_on():
            ended.append(job)
            answer = max(round(tokens * draw.lognormvariate(-0.02, 0.2)), 2) if streams > 1 else tokens
            node.arrive(Job(now, load.prompt_tokens, answer))
    counted = ended[2 * streams :]
    first_s = statistics.fmean((job.first_s or 0.0) - job.at for job in counted)
    rest_s = sum((job.end_s or 0.0) - (job.first_s or 0.0) for job in counted)
    token_ms = 1e3 * rest_s / sum(job.tokens - 1 for job in counted)
    first_ms, scatter = 1e3 * first_s + engine.request_ms / 2, draw.lognormvariate(0, NOISE)
    return Measured(load, first_ms * scatter, (first_ms + (tokens - 1) * token_ms) * scatter)


def list_cases(given: argparse.Namespace) -> Iterator[Case]:
    for truth in given.truths:
        for pair in given.pairs:
            if TRUTHS[truth].is_earlier and pair not in EARLIER:
                continue
            for seed in range(1, given.seeds + 1):
                for trace in given.traces:
                    rates = [1.0] if trace == BURSTS else given.rates
                    yield from (Case(truth, pair, trace, rate, seed, given.seconds) for rate in rates)


def describe(rows: Sequence[Row], arms: Sequence[str]) -> Iterator[str]:
    """Yields a line for each truth, pair and arm: the mean, the worst trace and rate over its seeds, 95 % of runs."""
    yield "| truth | pair | policy | mean | worst trace and rate | 95 % | most | changes |"
    yield "|---|---|---|---|---|---|---|---|"
    for truth, pair in dict.fromkeys((case.truth, case.pair) for case, _ in rows):
        own = [row for row in rows if (row[0].truth, row[0].pair) == (truth, pair)]
        for arm in arms:
            cells, changes = dict[tuple[str, float], list[float]](), list[int]()
            for case, results in own:
                best_s = min(results[LOW].mean_s, results[HIGH].mean_s)
                if best_s < OVERLOADED_S:
                    cells.setdefault((case.trace, case.rate), []).append(results[arm].mean_s / best_s)
                    changes.append(results[arm].changes)
            means = {cell: statistics.fmean(ratios) for cell, ratios in cells.items()}
            (trace, rate), worst = max(means.items(), key=lambda item: item[1])
            ratios = sorted(ratio for cell in cells.values() for ratio in cell)
            most = f"{ratios[math.ceil(0.95 * len(ratios)) - 1]:.3f} | {ratios[-1]:.3f}"
            yield (
                f"| {truth} | {pair} | {arm} | {statistics.fmean(ratios):.3f} | {worst:.3f} ({trace} x {rate:g}) "
                f"| {most} | {statistics.fmean(changes):.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truths", nargs="*", default=list(USUAL), help=f"of {', '.join(TRUTHS)}")
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS), help=f"of {', '.join((*PAIRS, *NODES))}")
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--traces", nargs="*", default=list(TRACES), help=f"of {', '.join((*TRACES, WAVES))}")
    parser.add_argument("--rates", nargs="*", type=float, default=list(RATES), help="times a trace's usual one")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in which the hour of a public trace passes")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    cases, rows = list(list_cases(given)), list[Row]()
    with ProcessPoolExecutor(given.workers) as pool:
        for row in pool.map(run, cases, [given.arms] * len(cases)):
            rows.append(row)
            print(f"\r{len(rows)} of {len(cases)}", end="", file=sys.stderr, flush=True)  # noqa: T201 - a progress
    print("", *describe(rows, given.arms), sep="\n")  # noqa: T201 - a table on stdout


if __name__ == "__main__":
    main()
