"""The node model that a calibration yields: how fast both engines are alone, and what each is beside the other. Pure.

In: cells. Out: the `node` of a policy `curve`, whose JSON docs/routing.md describes.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.decide.soundness import Check, Limits
from loadtest.results.cell import Cell
from loadtest.results.percentiles import Percentiles
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest

MOST_PREFILL = 1_000_000.0  # tokens a second: where a longer prompt takes no measurable time
MOST_INTERFERENCE = 4.0
CAPACITY = "max_batch_size"  # of an engine's identity, where it reports one
OPEN_SHARE = 0.75  # of the crossing: what an open loop is to have in flight, below where chance makes its queue grow


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine alone. `steps_ms`: pairs of in-flight and a whole answer's milliseconds by its tokens; `ttft_ms`: the
    same to its first token.
    """

    steps_ms: tuple[tuple[int, float], ...]
    prefill_tokens_per_s: float
    max_in_flight: int
    ttft_ms: tuple[tuple[int, float], ...] | None = None

    def find_step_ms(self, in_flight: float) -> float:
        """Returns the step between two levels by a straight line; outside of them that of the nearest."""
        for (below, below_ms), (above, above_ms) in pairwise(self.steps_ms):
            if in_flight <= above:
                return below_ms + (above_ms - below_ms) * max(in_flight - below, 0) / (above - below)
        return self.steps_ms[-1][1]


@dataclass(frozen=True, slots=True)
class OpenCell:
    """One engine alone while requests arrive by chance (Poisson), `rate` a second: what was in flight in the mean, and
    an answer's milliseconds by its tokens.
    """

    backend: str
    rate: float
    in_flight: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class NodeModel:
    """`interference`: how much of the other engine's step each step takes longer while both work. `move_s`: what a move
    costs besides the prefill that it causes.
    """

    low: EngineModel
    high: EngineModel
    interference: float
    prompt_tokens: int
    answer_tokens: int
    move_s: float

    def __str__(self) -> str:
        speeds = " and ".join(f"{engine.prefill_tokens_per_s:,.0f}" for engine in (self.low, self.high))
        return f"interference {self.interference:.2f}, prefill of {speeds} tokens a second"


@dataclass(frozen=True, slots=True)
class Prefill:
    """The least seconds to the first token of an idle engine, for prompts of two lengths in tokens."""

    tokens: float
    ttft_s: float
    long_tokens: float
    long_ttft_s: float

    @property
    def tokens_per_s(self) -> float:
        """What a token more in the prompt costs, upside down."""
        longer_s = self.long_ttft_s - self.ttft_s
        more = self.long_tokens - self.tokens
        return round(min(more / longer_s, MOST_PREFILL), 1) if longer_s > 0 else MOST_PREFILL

    @property
    def overhead_s(self) -> float:
        """What a first token costs besides the prefill: the way to the engine and back, and a step."""
        return max(self.ttft_s - self.tokens / self.tokens_per_s, 0.0)


def choose_rate(engine: EngineModel, tokens: int, crossing: float) -> float:
    """Chooses the arrivals a second of an open loop that is to have OPEN_SHARE of the crossing in flight."""
    in_flight = max(OPEN_SHARE * crossing, 1.0)
    return 1000 * in_flight / (tokens * engine.find_step_ms(in_flight))


def check_open_loop(node: NodeModel, cells: Sequence[OpenCell], system: SystemUnderTest, limits: Limits) -> Check:
    """Returns a check: a warning where an engine under chance arrivals is not as fast as its closed-loop curve says."""
    engines, found = dict(zip(system.backends, (node.low, node.high), strict=True)), []
    for cell in cells:
        expected_ms = engines[cell.backend].find_step_ms(cell.in_flight)
        found.append((abs(cell.step_ms / expected_ms - 1), cell, expected_ms))
    if not found:
        return Check("open loop", "note", "no open loop was measured")
    worst, cell, expected_ms = max(found, key=lambda one: one[0])
    shown = f"at {cell.rate:.3g} requests a second a token of {cell.backend} takes {cell.step_ms:.3g} ms"
    if worst <= limits.open_loop:
        return Check("open loop", "passed", f"{shown}, {expected_ms:.3g} by its curve: the farther of both")
    doubt = "a policy by the node model misjudges it, and the rehearsal shows what that costs"
    return Check("open loop", "warning", f"OPEN LOOP: {shown}, {expected_ms:.3g} by its closed-loop curve: {doubt}.")


def note_interference(node: NodeModel, beside: Mapping[str, Cell], tokens: int) -> Check:
    """Returns a note: the level at which both engines worked at once, and what a token took there and alone."""
    engines, found = dict(zip(beside, (node.low, node.high), strict=False)), []
    for name, cell in beside.items():
        if cell.e2e_s.p50:
            alone_ms = engines[name].find_step_ms(cell.level)
            found.append(f"a token of {name} takes {1000 * cell.e2e_s.p50 / tokens:.3g} ms, {alone_ms:.3g} alone")
    if not found:
        return Check("interference", "note", "no answer was measured while both engines worked")
    level = next(iter(beside.values())).level
    return Check("interference", "note", f"with {level} in flight on each, {' and '.join(found)}")


def make_node(
    cells: Sequence[Cell],
    beside: Mapping[str, Cell],
    prefills: Mapping[str, Prefill],
    system: SystemUnderTest,
    plan: Plan,
) -> NodeModel | None:
    """Makes the model. `beside`: by backend, its cell while the other one worked at the same level.

    None if a backend has no steps.
    """
    steps = {name: _find_times(cells, name, lambda cell: cell.e2e_s, plan.tokens) for name in system.backends}
    if not all(steps.values()):
        return None
    first = {name: _find_times(cells, name, lambda cell: cell.ttft_s) for name in system.backends}
    low, high = (
        EngineModel(
            steps[name], prefills[name].tokens_per_s, _find_most(system, name, steps[name]), first[name] or None
        )
        for name in system.backends
    )
    return NodeModel(
        low=low,
        high=high,
        interference=_find_interference(steps, beside, plan.tokens),
        prompt_tokens=max(round(statistics.fmean(cell.prompt_tokens for cell in cells)), 1),
        answer_tokens=plan.tokens,
        # An answer that moves is for the engine that it goes to a new request with a longer prompt.
        move_s=round(statistics.fmean(prefills[name].overhead_s for name in system.backends), 4),
    )


def _find_times(
    cells: Sequence[Cell], backend: str, choose: Callable[[Cell], Percentiles], tokens: int = 1
) -> tuple[tuple[int, float], ...]:
    """Finds the median milliseconds of each level, by `tokens`.

    Null pairs are of one level alone and count like others.
    """
    times: dict[int, list[float]] = {}
    for cell in cells:
        if cell.backend == backend and (seconds := choose(cell).p50):
            times.setdefault(cell.level, []).append(1000 * seconds / tokens)
    return tuple((level, round(statistics.median(times[level]), 4)) for level in sorted(times))


def _find_most(system: SystemUnderTest, backend: str, steps: Sequence[tuple[int, float]]) -> int:
    """Finds how many an engine serves at once: what it reports, or the highest level that was measured."""
    reported = system.engines.get(backend, {}).get(CAPACITY)
    return reported if isinstance(reported, int) and reported >= 1 else steps[-1][0]


def _find_interference(
    steps: Mapping[str, Sequence[tuple[int, float]]], beside: Mapping[str, Cell], tokens: int
) -> float:
    """Finds the mean, over both engines, of the time that a step takes longer by the other's own step."""
    shares = []
    for (name, cell), other in zip(beside.items(), reversed(list(beside)), strict=True):
        alone, others = dict(steps[name]).get(cell.level), dict(steps[other]).get(cell.level)
        if cell.e2e_s.p50 and alone and others:
            shares.append((1000 * cell.e2e_s.p50 / tokens - alone) / others)
    share = statistics.fmean(shares) if shares else 0.0
    return round(min(max(share, 0.0), MOST_INTERFERENCE), 3)
