"""The node model that a calibration yields: how fast both engines are alone, and what each is beside the other. Pure.

In: cells. Out: the `node` of a policy `curve`, whose JSON docs/routing.md describes.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.results.cell import Cell
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest

MOST_PREFILL = 1_000_000.0  # tokens a second: where a longer prompt takes no measurable time
MOST_INTERFERENCE = 4.0
CAPACITY = "max_batch_size"  # of an engine's identity, where it reports one


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine alone. `steps_ms`: pairs of in-flight and a whole answer's milliseconds by its tokens."""

    steps_ms: tuple[tuple[int, float], ...]
    prefill_tokens_per_s: float
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class NodeModel:
    """`interference`: how much of the other engine's step each step takes longer while both work."""

    low: EngineModel
    high: EngineModel
    interference: float
    prompt_tokens: int
    answer_tokens: int

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
    steps = {name: _find_steps(cells, name, plan.tokens) for name in system.backends}
    if not all(steps.values()):
        return None
    low, high = (
        EngineModel(steps[name], prefills[name].tokens_per_s, _find_most(system, name, steps[name]))
        for name in system.backends
    )
    return NodeModel(
        low=low,
        high=high,
        interference=_find_interference(steps, beside, plan.tokens),
        prompt_tokens=max(round(statistics.fmean(cell.prompt_tokens for cell in cells)), 1),
        answer_tokens=plan.tokens,
    )


def _find_steps(cells: Sequence[Cell], backend: str, tokens: int) -> tuple[tuple[int, float], ...]:
    """Finds the median step of each level. Null pairs are of one level alone and count like others."""
    times: dict[int, list[float]] = {}
    for cell in cells:
        if cell.backend == backend and cell.e2e_s.p50:
            times.setdefault(cell.level, []).append(1000 * cell.e2e_s.p50 / tokens)
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
