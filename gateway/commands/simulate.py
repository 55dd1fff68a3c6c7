"""`crossover policy simulate`: traces against a node model under several policies, many times faster than life.

In: a node model's file, traces, policies. Out: a table or JSON. It joins three rooms that otherwise do not know each
other: the policies as they serve, the simulated engines, and the instrument's traces and regret.
"""

import heapq
import json
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from pydantic import TypeAdapter, ValidationError
from rich import box
from rich.console import Console
from rich.table import Column, Table

from engines.physics import EngineModel, Job, Mix, Replica
from engines.physics.forecast import find_answer_s, find_capacity, find_room
from engines.physics.prefix_cache import BLOCK_TOKENS, PrefixCache
from engines.simulation import Engine, Node, NodeSpec
from gateway.commands.policy_router import PolicyRouter
from gateway.core import Policy
from gateway.routing.policies import NodeModel, read_policy
from loadtest.decide.optimum import FluidEngine, FluidNode
from loadtest.decide.regret import find_regret
from loadtest.rehearsal.find_trace import NAMES, TRACE_HELP, read_recorded
from loadtest.rehearsal.traces import TRACES, Pair, TraceRequest, Variant, make_trace

LOW, HIGH = "low", "high"
ALONE = {LOW: "low alone", HIGH: "high alone"}
CURVE = "curve"
MAX_SEEDS = 1000
GRAIN, ROUNDS = 1.15, 6  # of what is in flight, and of its settling, in the optimum's tables
TABLE_WIDTH = 140  # where nothing shows how wide the reader's window is


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy did with one trace. Ratios are as in loadtest/decide/regret.py and optimum.py.

    `cached`: the part of the prompts' tokens that prefix caches held.
    """

    trace: str
    seed: int | None
    policy: str
    regret: float
    over_best: float
    over_optimum: float
    mean_s: float
    p99_s: float
    changes: int
    moves: int
    cached: float


class Alone:
    """Sends all requests to one engine."""

    beat_s = 1.0
    changes = moves = 0

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        return job.only or self._engine

    def began(self, job: Job, engine: str, now: float) -> None: ...

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        return ()


@click.command(context_settings={"show_default": True})
@click.option("--node", "node_file", type=click.Path(path_type=Path), required=True, help="The node model's JSON.")
@click.option("--trace", "traces", multiple=True, help=TRACE_HELP)
@click.option("--policy", "policies", multiple=True, default=(CURVE,), help="A kind and its keys, as in the example.")
@click.option(
    "--seeds", callback=lambda *given: _read_seeds(given[2]), default="1-3", help="Of the traces: 7, or 1-20."
)
@click.option("--prefix-cache", is_flag=True, help="Engines keep blocks of prompts, as KV has room, as vLLM does.")
@click.option("--json", "as_json", is_flag=True, help="Every trace of every seed as JSON.")
def simulate_policies(
    node_file: Path, traces: Sequence[str], policies: Sequence[str], seeds: Sequence[int], **options: bool
) -> None:
    """Replay traces against a node model under any policies, many times faster than life.

    Each trace is served by either engine alone and under every --policy. Regret is the sum of answer times over the
    better engine's mean in windows of 50 requests; over best is the mean answer time over the better engine's alone;
    over optimum is that over the least that any division of each window between the engines could give.

    Turns of a conversation wait for their answers. With --prefix-cache each replica keeps blocks of prompts, and those
    unused for longest leave first.

    \b
    Examples:
      crossover policy simulate --node node.json
      crossover policy simulate --node node.json --trace ramp --seeds 1-20 --policy curve --policy "share share=0.5"
      crossover policy simulate --node node.json --trace "step only_high=0.2" --trace "step long=0.05 long_tokens=8000"
      crossover policy simulate --node node.json --trace "mooncake-chat peak=8 seconds=300" --prefix-cache

    Exit codes: 0 done; 2 bad arguments.
    """
    node = _read_node(node_file)
    arms = {text: _read_policy(text, node) for text in policies}
    outcomes = [
        outcome
        for name in traces or TRACES
        for number, trace in _make_traces(name, node, seeds)
        for outcome in _serve((name, number), trace, node, arms, caches=options["prefix_cache"])
    ]
    if options["as_json"]:
        click.echo(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        _print(outcomes, shows_cached=options["prefix_cache"])


def _read_seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (not dash or last.isdecimal())):
        raise click.BadParameter(f"{text!r}: must be a number, or two as in 1-20")
    seeds = range(int(first), int(last or first) + 1)
    if not 1 <= len(seeds) <= MAX_SEEDS:
        raise click.BadParameter(f"{text!r}: must be 1 to {MAX_SEEDS} seeds")
    return seeds


def _read_node(path: Path) -> NodeModel:
    """Reads a node model, or the one in a calibration's result.json."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise click.BadParameter(f"{path}: {exc}", param_hint="--node") from exc
    if isinstance(content, dict) and isinstance(content.get("node"), dict):
        content = content["node"]
    try:
        return TypeAdapter(NodeModel).validate_python(content)
    except ValidationError as exc:
        raise click.BadParameter(f"{path}: {_describe(exc)}", param_hint="--node") from exc


def _read_policy(text: str, node: NodeModel) -> Policy:
    kind, *terms = text.split()
    section: dict[str, object] = {"kind": kind, "low": LOW, "high": HIGH}
    if kind == CURVE:
        section["node"] = asdict(node)
    for term in terms:
        key, equals, value = term.partition("=")
        if not equals:
            raise click.BadParameter(f"{term!r} in {text!r}: must be key=value", param_hint="--policy")
        try:
            section[key] = json.loads(value)
        except ValueError:
            section[key] = value
    try:
        policy = read_policy(section)
    except ValidationError as exc:
        raise click.BadParameter(f"{text!r}: {_describe(exc)}", param_hint="--policy") from exc
    for key, problem in policy.problems((LOW, HIGH)):
        raise click.BadParameter(f"{text!r}: {key}: {problem}", param_hint="--policy")
    return policy


def _describe(exc: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())


def _make_traces(
    name: str, node: NodeModel, seeds: Iterable[int]
) -> Iterable[tuple[int | None, Sequence[TraceRequest]]]:
    try:
        variant = Variant.parse(name)
        if variant is None:
            return [(None, read_recorded(name))]
    except (OSError, ValueError) as exc:
        hint = f"{exc} (known by name: {NAMES})"
        raise click.BadParameter(hint, param_hint="--trace") from exc
    mix = Mix.of([node.prompt_tokens], node.answer_tokens)
    answers_per_s = max(find_capacity(engine, mix) for engine in node)
    answer_s = min(find_answer_s(engine, mix, 0.0, 1.0) for engine in node)
    pair = Pair(answer_s, answers_per_s, node.prompt_tokens, node.answer_tokens)
    return [(seed, make_trace(variant, pair, seed)) for seed in seeds]


def _serve(
    title: tuple[str, int | None],
    trace: Sequence[TraceRequest],
    node: NodeModel,
    policies: Mapping[str, Policy],
    *,
    caches: bool,
) -> Iterable[Outcome]:
    routers: dict[str, Alone | PolicyRouter] = {
        **{label: Alone(engine) for engine, label in ALONE.items()},
        **{text: PolicyRouter(policy, (LOW, HIGH)) for text, policy in policies.items()},
    }
    spec = NodeSpec(
        {LOW: node.low, HIGH: node.high}, node.interference, node.move_s, _make_caching if caches else Replica
    )
    times, cached = dict[str, list[list[float]]](), dict[str, float]()
    for label, router in routers.items():
        jobs = play(trace, make_jobs(trace, caches=caches), Node(spec, router))
        times[label] = [[_find_end(job) - job.at for job in jobs]]
        cached[label] = sum(job.cached for job in jobs) / sum(job.prompt_tokens for job in jobs)
    optimum_s = _find_optimum(node, trace, max(cached.values()))
    for label, router in routers.items():
        regret = find_regret(label, times, tuple(ALONE.values()))
        ratios = (regret.regret.value, regret.over_best.value, regret.mean_s / optimum_s)
        counts = router.changes, router.moves
        yield Outcome(*title, label, *ratios, regret.mean_s, regret.p99_s, *counts, cached[label])


def make_jobs(trace: Sequence[TraceRequest], *, caches: bool) -> Sequence[Job]:
    """Returns a trace's requests as jobs, with hashes of their prompts' blocks where caches need them."""
    blocks = [_hash_blocks(each, place) if caches else () for place, each in enumerate(trace)]
    return [
        Job(each.at, each.prompt_tokens, each.tokens, each.only or None, hashes)
        for each, hashes in zip(trace, blocks, strict=True)
    ]


def play(trace: Sequence[TraceRequest], jobs: Sequence[Job], node: Node) -> Sequence[Job]:
    """Serves a trace's jobs. One that waits for an answer comes when that has ended and its user has waited."""
    followers: dict[Job, list[int]] = {job: [] for job in jobs}
    for place, each in enumerate(trace):
        if each.after is not None:
            followers[jobs[each.after]].append(place)
    coming = [(each.at, place) for place, each in enumerate(trace) if each.after is None]
    while coming or node.in_flight:
        if coming and coming[0][0] < node.find_next():
            at, place = heapq.heappop(coming)
            node.run(at)
            node.arrive(jobs[place])
            continue
        for ended in node.go_on():
            for place in followers[ended]:
                jobs[place].at = _find_end(ended) + trace[place].wait_s
                heapq.heappush(coming, (jobs[place].at, place))
    return jobs


def _make_caching(engine: EngineModel) -> Replica:
    return Replica(engine, PrefixCache(engine.kv_tokens or math.inf))


def _hash_blocks(request: TraceRequest, place: int) -> tuple[int, ...]:
    """Returns a hash for each block of a prefix cache. What no other prompt shares goes by its `place` in the trace."""
    hashes, last, shared = [], 0, len(request.prefix) * request.block
    for end in range(BLOCK_TOKENS, request.prompt_tokens + 1, BLOCK_TOKENS):
        last = hash((last, request.prefix[(end - 1) // request.block]) if end <= shared else (last, place, end))
        hashes.append(last)
    return tuple(hashes)


def _find_optimum(node: NodeModel, trace: Sequence[TraceRequest], cached: float) -> float:
    """`cached`: the part of the prompts that need not be prefilled, at most."""
    tokens = round(statistics.fmean(each.tokens for each in trace))
    mix = Mix.of([(1 - cached) * each.prompt_tokens for each in trace], tokens)
    low, high = (FluidEngine(_tabulate_step_s(engine, mix), round(find_room(engine, mix))) for engine in node)
    return FluidNode((low, high), node.interference, tokens).find_optimum([each.at for each in trace])


def _tabulate_step_s(engine: EngineModel, mix: Mix) -> Callable[[float], float]:
    """Returns the seconds of an answer for each of its tokens by what is in flight, where as many come as finish."""
    counts = [0.0, 1.0]
    while counts[-1] < find_room(engine, mix):
        counts.append(counts[-1] * GRAIN)
    times, rate = list[float](), 0.0
    for count in counts:
        for _ in range(ROUNDS):
            rate = count / find_answer_s(engine, mix, rate, count)
        times.append(find_answer_s(engine, mix, rate, count) / mix.answer_tokens)

    def step_s(count: float) -> float:
        above = min(max(bisect_right(counts, count), 1), len(counts) - 1)
        share = (count - counts[above - 1]) / (counts[above] - counts[above - 1])
        return times[above - 1] + share * (times[above] - times[above - 1])

    return step_s


def _find_end(job: Job) -> float:
    assert job.end_s is not None  # a simulation ends when nothing is in flight
    return job.end_s


def _print(outcomes: Sequence[Outcome], *, shows_cached: bool) -> None:
    figures = ["regret", "most", "over best", "most", "over optimum", "mean", "p99", "changes", "moves"]
    if shows_cached:
        figures.append("cached")
    table = Table(
        "trace",
        Column("policy", no_wrap=True),
        *(Column(name, justify="right") for name in figures),
        box=box.SIMPLE_HEAD,
    )
    for trace, policy in dict.fromkeys((outcome.trace, outcome.policy) for outcome in outcomes):
        own = [outcome for outcome in outcomes if (outcome.trace, outcome.policy) == (trace, policy)]
        regrets, over_best = [each.regret for each in own], [each.over_best for each in own]
        table.add_row(
            trace,
            policy,
            *(f"{number:.3f}" for values in (regrets, over_best) for number in (statistics.fmean(values), max(values))),
            f"{statistics.fmean(each.over_optimum for each in own):.3f}",
            f"{statistics.fmean(each.mean_s for each in own):.3g} s",
            f"{statistics.fmean(each.p99_s for each in own):.3g} s",
            f"{statistics.fmean(each.changes for each in own):.1f}",
            f"{statistics.fmean(each.moves for each in own):.0f}",
            *([f"{statistics.fmean(each.cached for each in own):.0%}"] if shows_cached else []),
        )
    Console(width=max(Console().width, TABLE_WIDTH)).print(table)
