"""The node model that a calibration yields: the numbers of both engines, and how much they slow each other down. Pure.

In: what cells measured, and what the gateway reports of the engines. Out: the `node` of a policy `curve`, whose JSON
docs/routing.md describes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from engines.physics import EngineModel, Mix
from engines.physics.forecast import find_answer_s
from loadtest.decide.closed_load import Load
from loadtest.decide.engine_fit import Fit, Interval, Measured, Shape, find_misfits, fit_engine, list_times, set_times
from loadtest.decide.interference import Round, find_interference
from loadtest.decide.soundness import Check, Limits
from loadtest.results.cell import Cell
from loadtest.results.percentiles import Percentiles
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest

CAPACITY = "max_batch_size"  # of an engine's identity, where it reports one
BUNDLED = 1.05  # tokens in a chunk of one stream: with more a step gives several
OPEN_SHARE = 0.75  # of the crossing: what an open loop is to have in flight, below where chance makes its queue grow
MOST_TOKENS = 64.0  # of a sequence in a step
MOST_INTERFERENCE = 4.0

NodeCells: TypeAlias = Mapping[str, Sequence[Measured]]  # by backend


@dataclass(frozen=True, slots=True)
class OpenCell:
    """One engine alone while requests arrive by chance (Poisson), `rate` a second: what was in flight in the mean, and
    the mean seconds of an answer, measured and by the node model.
    """

    backend: str
    rate: float
    in_flight: float
    answer_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class NodeModel:
    """`interference`: how many times its own time a step takes longer while both work. `move_s`: what a move
    costs besides the prefill that it causes. `prompt_tokens`, `answer_tokens`: of the first shape. `low_error`,
    `high_error`: the largest logarithm by which the other cells predict the answer times of a shape wrong.
    `intervals`: of each engine's numbers, and of the interference (95 %).
    """

    low: EngineModel
    high: EngineModel
    interference: float
    move_s: float
    prompt_tokens: int
    answer_tokens: int
    low_error: float = 0.0
    high_error: float = 0.0
    intervals: Mapping[str, Mapping[str, Interval] | Interval] = field(default_factory=dict)

    def __str__(self) -> str:
        steps, prompts = (
            " and ".join(f"{ms:.3g}" for ms in times)
            for times in zip(*((each.steps_ms[0][1], each.prompt_ms) for each in (self.low, self.high)), strict=True)
        )
        shown = f"a step takes {steps} ms, 1,000 prompt tokens {prompts} ms, interference {self.interference:.2f}"
        errors = " and ".join(f"{math.expm1(error):.0%}" for error in (self.low_error, self.high_error))
        return f"{shown}, shapes left out are predicted within {errors}"

    @property
    def error(self) -> float:
        """The larger of both errors, as a share."""
        return math.expm1(max(self.low_error, self.high_error))


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """`misfits`: by backend and shape, as in `find_misfits`. `turns`: in milliseconds of steps."""

    node: NodeModel
    misfits: Mapping[str, Mapping[Shape, float]]
    turns: Sequence[Round]


def make_measured(cell: Cell, tokens: int) -> Measured | None:
    """Returns the mean times of a closed loop with answers of `tokens`; None if it has none."""
    first_s, answer_s = (each.p50 if each.mean is None else each.mean for each in (cell.ttft_s, cell.e2e_s))
    if not first_s or not answer_s or answer_s <= first_s:
        return None
    load = Load(max(round(cell.prompt_tokens), 1), tokens, cell.level)
    return Measured(load, 1000 * first_s, 1000 * answer_s)


def find_node_cells(cells: Sequence[Cell], more: NodeCells, plan: Plan) -> NodeCells:
    """Adds the cells that decide the crossing, the mean of each level, to those of other shapes."""
    prompt_tokens = round(statistics.fmean(cell.prompt_tokens for cell in cells)) if cells else 1
    found = {}
    for backend, others in more.items():
        times: dict[int, list[Measured]] = {}
        for cell in cells:
            if cell.backend == backend and (measured := make_measured(cell, plan.tokens)):
                times.setdefault(cell.level, []).append(measured)
        first = [
            Measured(
                Load(max(prompt_tokens, 1), plan.tokens, level),
                round(statistics.fmean(each.first_ms for each in times[level]), 4),
                round(statistics.fmean(each.answer_ms or 0.0 for each in times[level]), 4),
            )
            for level in sorted(times)
        ]
        found[backend] = (*first, *others)
    return found


def make_node(
    cells: Sequence[Cell], node_cells: NodeCells, turns: Sequence[Mapping[str, Sequence[Cell]]],
    system: SystemUnderTest, plan: Plan,
) -> NodeFinding | None:  # fmt: skip
    """Makes the model. `turns`: by backend its cells: alone, beside the other, alone. None if a backend has no cells of
    the first shape, or none of prompts alone.
    """
    if not all(_is_enough(measured) for measured in node_cells.values()):
        return None
    known = {name: describe_engine(name, cells, system) for name in system.backends}
    fits = {name: fit_engine(node_cells[name], known[name]) for name in system.backends}
    misfits = {name: find_misfits(node_cells[name], fits[name]) for name in system.backends}
    steps = [made for turn in turns if (made := _make_turn(turn, system, known))]
    share, ends = _find_interference(steps)
    low, high = (fits[name].engine for name in system.backends)
    low_error, high_error = (max(misfits[name].values(), default=0.0) for name in system.backends)
    node = NodeModel(
        low=_round(low),
        high=_round(high),
        interference=share,
        # An answer that moves is for the engine that it goes to a new request: its way, and a step.
        move_s=round(
            statistics.fmean(max(_find_step(each), each.mixed_ms) + each.request_ms for each in (low, high)) / 1e3, 4
        ),
        prompt_tokens=max(round(statistics.fmean(cell.prompt_tokens for cell in cells)), 1),
        answer_tokens=plan.tokens,
        low_error=low_error,
        high_error=high_error,
        intervals=_collect_intervals(fits, system) | {"interference": ends},
    )
    return NodeFinding(node, misfits, steps)


def describe_engine(backend: str, cells: Sequence[Cell], system: SystemUnderTest) -> EngineModel:
    """Returns an engine with what is known of it besides times: by its own report, or else by what was seen of it."""
    size, own = system.sizes.get(backend, {}), [cell for cell in cells if cell.backend == backend]
    replicas = max(int(size.get("replicas", 1)), 1)
    fewest = min(own, key=lambda cell: cell.level)
    seen = fewest.tokens_per_chunk if fewest.tokens_per_chunk > BUNDLED else 1.0
    tokens = min(max(size.get("tokens_per_step", seen), 1.0), MOST_TOKENS)
    most = math.ceil(max(cell.level for cell in own) / replicas)
    reported = system.engines.get(backend, {}).get(CAPACITY)
    capacity = reported if isinstance(reported, int) and reported >= 1 else max(256, most)
    kv_tokens = int(size.get("kv_tokens", 0))
    return EngineModel(
        steps_ms=((1, 1.0),),
        tokens_per_step=round(tokens, 3),
        # Of what is drafted about half is accepted, where nothing better is known.
        verified=int(min(size.get("verified", math.ceil(2 * tokens - 1)), MOST_TOKENS)),
        replicas=replicas,
        max_sequences=int(size.get("max_sequences", capacity)),
        kv_tokens=kv_tokens or None,
    )


def list_intervals(node: NodeModel, system: SystemUnderTest) -> dict[str, Interval]:
    """Lists the intervals of all numbers, by names that hold for other runs of the same backends."""
    names = {"low": system.low, "high": system.high}
    found = dict[str, Interval]()
    for key, interval in node.intervals.items():
        own = interval if isinstance(interval, Mapping) else {"": interval}
        found |= {f"{names.get(key, key)} {number}".strip(): ends for number, ends in own.items()}
    return found


def choose_rate(node: NodeModel, engine: EngineModel, crossing: float) -> float:
    """Chooses the arrivals a second of an open loop that is to have OPEN_SHARE of the crossing in flight."""
    mix, in_flight = Mix.of([node.prompt_tokens], node.answer_tokens), max(OPEN_SHARE * crossing, 1.0)
    rate = 0.0
    for _ in range(20):
        rate = (rate + in_flight / find_answer_s(engine, mix, rate, in_flight)) / 2
    return rate


def check_fit(finding: NodeFinding, limits: Limits) -> Check:
    """Returns a check: a warning where cells of one shape are not what the others predict."""
    worst = [(error, name, shape) for name, own in finding.misfits.items() for shape, error in own.items()]
    if not worst:
        return Check("node model", "note", "too few shapes were measured to predict one from the others")
    error, name, shape = max(worst)
    shown = f"of {name} by {math.expm1(error):.0%}, for {_name_shape(shape)}"
    if math.expm1(error) <= limits.misfit:
        return Check("node model", "passed", f"the other cells predict each shape's answer times: the worst {shown}")
    doubt = f"MISFIT: the other cells predict answer times wrong {shown}: the engine is not as the node model has it"
    is_unusable = finding.node.error > limits.unusable
    return Check("node model", "warning", f"{doubt}{', which is not applied' if is_unusable else ''}.")


def check_open_loop(cells: Sequence[OpenCell], limits: Limits) -> Check:
    """Returns a check: a warning where an engine under chance arrivals is not as fast as its model says."""
    if not cells:
        return Check("open loop", "note", "no open loop was measured")
    worst = max(cells, key=lambda cell: abs(cell.answer_s / cell.expected_s - 1))
    shown = f"at {worst.rate:.3g} requests a second an answer of {worst.backend} takes {worst.answer_s:.3g} s"
    expected = f"{worst.expected_s:.3g} by the node model"
    if abs(worst.answer_s / worst.expected_s - 1) <= limits.open_loop:
        return Check("open loop", "passed", f"{shown}, {expected}: the farther of both")
    doubt = "a policy by the node model misjudges it, and the rehearsal shows what that costs"
    return Check("open loop", "warning", f"OPEN LOOP: {shown}, {expected}: {doubt}.")


def note_interference(finding: NodeFinding, system: SystemUnderTest, level: int) -> Check:
    """Returns a note: the level at which both engines worked at once, and what a step took there and alone."""
    if not finding.turns:
        return Check("interference", "note", "no answer was measured while both engines worked")
    alone = list(zip(*((sum(turn.low) / 2, sum(turn.high) / 2) for turn in finding.turns), strict=True))
    beside = list(zip(*((turn.low_beside, turn.high_beside) for turn in finding.turns), strict=True))
    low, high = (
        f"a step of {name} takes {statistics.fmean(slow):.3g} ms, {statistics.fmean(own):.3g} alone"
        for name, slow, own in zip(system.backends, beside, alone, strict=True)
    )
    return Check("interference", "note", f"with {level} in flight on each, {low} and {high}")


def _is_enough(cells: Sequence[Measured]) -> bool:
    alone = [cell for cell in cells if cell.answer_ms is None]
    return len(alone) > 1 and any(cell.answer_ms is not None for cell in cells)


def _make_turn(
    turn: Mapping[str, Sequence[Cell]], system: SystemUnderTest, known: Mapping[str, EngineModel]
) -> Round | None:
    times = []
    for name in system.backends:
        before, beside, after = (1000 * _find_mean(cell.tpot_s) * known[name].tokens_per_step for cell in turn[name])
        times.append((before, beside, after))
    (low, low_beside, low_after), (high, high_beside, high_after) = times
    if not all(map(all, times)):
        return None
    return Round((low, low_after), (high, high_after), low_beside, high_beside)


def _find_interference(rounds: Sequence[Round]) -> tuple[float, Interval]:
    """Returns the share of a node model and its interval: all that there can be, where fewer than two rounds are."""
    if not rounds:
        return 0.0, (0.0, MOST_INTERFERENCE)
    share = find_interference(rounds).mean
    low, high = share.ends or (0.0, MOST_INTERFERENCE)
    return _limit(share.value), (_limit(low), _limit(high))


def _limit(share: float) -> float:
    return round(min(max(share, 0.0), MOST_INTERFERENCE), 3)


def _find_mean(times: Percentiles) -> float:
    return times.mean or times.p50 or 0.0


def _find_step(engine: EngineModel) -> float:
    return engine.steps_ms[0][1]


def _round(engine: EngineModel) -> EngineModel:
    return set_times(engine, [float(f"{ms:.5g}") for ms in list_times(engine)])


def _collect_intervals(
    fits: Mapping[str, Fit], system: SystemUnderTest
) -> dict[str, Mapping[str, Interval] | Interval]:
    return dict(zip(("low", "high"), (fits[name].intervals for name in system.backends), strict=True))


def _name_shape(shape: Shape) -> str:
    prompt_tokens, answer_tokens = shape
    return f"{prompt_tokens:,} prompt tokens x {answer_tokens}" if answer_tokens else "prompts alone"
