"""Simulated pairs of engines whose crossing is known, calibrated by the same code that decides about real ones.

    python -m tests.loadtest.simulation --runs 1000

prints for each scenario how often the confidence set held the truth, how wide it was, and how often each verdict came.
A cell's figure is its curve, times what the machine drifts in the course of the run, times slow noise that neighbouring
cells share, times noise of its own.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from loadtest.calibration.schedule import next_pair
from loadtest.decide.crossing import Finding, Verdict, find_crossing
from loadtest.decide.estimate import Trial, estimate
from loadtest.results.plan import FULL, QUICK, Plan

Curve = Callable[[float], float]  # log2 of the level -> ln(low / high)
TWICE = replace(QUICK, null_pairs=0)
Outcome = tuple[Finding, int]  # with the number of pairs that it took


def straight(truth: float, slope: float) -> Curve:
    """Falls by `slope` (natural log) per octave everywhere."""
    return lambda octave: slope * (math.log2(truth) - octave)


def bend(truth: float, slope: float) -> Curve:
    """Flat at low load, then falling ever faster, as where one engine saturates. `slope`: at the crossing."""
    return lambda octave: slope / math.log(2) * (1 - 2 ** (octave - math.log2(truth)))


def wave(height: float) -> Curve:
    """Two crossings, two and five octaves up."""
    return lambda octave: height * math.cos(math.pi * (octave - 0.5) / 3)


def flat(height: float, slope: float = 0.0) -> Curve:
    return lambda octave: height + slope * octave


@dataclass(frozen=True, slots=True)
class Scenario:
    """`noise`: standard deviation of one cell's figure, as a share. `drift`: over the whole sweep. `slow`: standard
    deviation of noise of which nine tenths remain from one cell to the next. `first`: the advantage of being measured
    first in a pair. `loud`: a level that is five times as noisy.
    """

    name: str
    curve: Curve
    verdict: Verdict
    noise: float
    drift: float = 0.0
    slow: float = 0.0
    first: float = 0.0
    loud: int | None = None
    truth: float | None = None
    plan: Plan = field(default=replace(FULL, null_pairs=0))


class Machine:
    """Measures one cell at a time; drifts and scatters as the scenario says."""

    def __init__(self, scenario: Scenario, seed: str) -> None:
        self._scenario = scenario
        self._random = random.Random(seed)
        self._cells = 0
        self._slow = self._random.gauss(0, scenario.slow)
        self._length = 2 * len(scenario.plan.schedule())

    def cell(self, level: int, is_low: bool, is_first: bool = False) -> float:
        """Natural log of its figure, relative to the curve of the high-load backend."""
        scenario = self._scenario
        self._slow = 0.9 * self._slow + self._random.gauss(0, scenario.slow * math.sqrt(1 - 0.81))
        at = self._cells / self._length
        self._cells += 1
        own = scenario.curve(math.log2(level)) if is_low else 0.0
        first = scenario.first if is_first else 0.0
        noise = scenario.noise * (5 if level == scenario.loud else 1)
        return own + first + scenario.drift * at + self._slow + self._random.gauss(0, noise)

    def pair(self, level: int, low_first: bool) -> Trial:
        one, other = self.cell(level, low_first, is_first=True), self.cell(level, not low_first)
        return Trial(level, one - other if low_first else other - one, low_first)


def calibrate(scenario: Scenario, seed: str) -> Outcome:
    """A whole calibration, refinement included."""
    machine, trials = Machine(scenario, seed), list[Trial]()
    while pair := next_pair(scenario.plan, len(trials), trials):
        trials.append(machine.pair(pair.level, pair.low_first))
    return find_crossing(estimate(trials), scenario.plan.band), len(trials)


def calibrate_in_sequence(scenario: Scenario, seed: str) -> Outcome:
    """As others do it: one backend's whole sweep, then the other's. The same cells, and the same decision."""
    machine = Machine(scenario, seed)
    levels = sorted(pair.level for pair in scenario.plan.schedule())
    high = [machine.cell(level, is_low=False) for level in levels]
    low = [machine.cell(level, is_low=True) for level in levels]
    trials = [Trial(level, a - b, False) for level, a, b in zip(levels, low, high, strict=True)]
    return find_crossing(estimate(trials), scenario.plan.band), len(trials)


def scenarios() -> Iterator[Scenario]:
    for noise in (0.01, 0.02, 0.03):
        for kind, truth in ((straight, 12), (straight, 45), (straight, 90), (bend, 12), (bend, 45)):
            name = f"{kind.__name__} {truth}, noise {noise:.0%}"
            yield Scenario(name, kind(truth, 0.15), Verdict.CROSSING, noise, truth=truth)
    usual = Scenario("", bend(45, 0.15), Verdict.CROSSING, 0.01, truth=45)
    yield replace(usual, name="bend 45, drift -3%", drift=-0.03)
    yield replace(usual, name="bend 45, slow noise 2%", slow=0.02)
    yield replace(usual, name="bend 45, first +2%", first=0.02)
    yield replace(usual, name="bend 45, 128 is loud", loud=128)
    yield replace(usual, name="bend 45, 64 is loud", loud=64)
    yield replace(usual, name="straight 45, 30% an octave", curve=straight(45, 0.3))
    for noise in (0.01, 0.02):  # two repeats at five levels
        quick = replace(usual, name=f"quick, noise {noise:.0%}", curve=straight(45, 0.15), noise=noise, plan=TWICE)
        yield quick
        yield replace(quick, name=f"quick, noise {noise:.0%}, 8 is loud", loud=8)
    for noise in (0.01, 0.02, 0.03):
        for name, curve, verdict in (
            ("low wins", flat(0.15, -0.01), Verdict.ALWAYS_LOW),
            ("high wins", flat(-0.08, -0.01), Verdict.ALWAYS_HIGH),
            ("two crossings", wave(0.15), Verdict.SEVERAL),
        ):
            yield Scenario(f"{name}, noise {noise:.0%}", curve, verdict, noise, drift=-0.03)
    for noise in (0.01, 0.02):
        yield Scenario(f"tie, noise {noise:.0%}", flat(0.0), Verdict.TIE, noise)


@dataclass(frozen=True, slots=True)
class Score:
    """`coverage`: share of runs whose set held the truth; a run without a crossing did not. `correct`: share of runs
    with the right verdict. `width` and `pairs`: medians.
    """

    coverage: float | None
    correct: float
    width: float | None
    pairs: float
    verdicts: Counter[Verdict]


def score(scenario: Scenario, outcomes: Sequence[Outcome]) -> Score:
    truth = scenario.truth or math.nan
    found = [finding.changes[0] for finding, _ in outcomes if finding.verdict is Verdict.CROSSING]
    holding = sum(any(low <= truth <= high for low, high in change.set) for change in found)
    verdicts = Counter(finding.verdict for finding, _ in outcomes)
    return Score(
        holding / len(outcomes) if scenario.truth else None,
        verdicts[scenario.verdict] / len(outcomes),
        median(change.spread for change in found) if found else None,
        median(pairs for _, pairs in outcomes),
        verdicts,
    )


def run(scenario: Scenario, runs: int, seed: int = 0) -> Score:
    return score(scenario, [calibrate(scenario, f"{seed}/{number}") for number in range(runs)])


def score_quiet_levels(noisy: float, runs: int, seed: int = 0) -> tuple[float, float]:
    """Of five levels measured twice, with gains of 0.15 and cells of 1 % noise, one has `noisy` times the noise.

    Returns how often the others are clear at 0.01 over the levels, and how often their 95 % interval holds the truth.
    """
    chance, levels, clear, holding = random.Random(seed), TWICE.levels, 0, 0
    for _ in range(runs):
        trials = [
            Trial(level, 0.15 + chance.gauss(0, 0.01 * math.sqrt(2) * (noisy if level == levels[1] else 1)), first)
            for place, level in enumerate(levels)
            for first in (place % 2 == 0, place % 2 == 1)
        ]
        known = estimate(trials)
        assert known is not None
        for each in known.levels:
            if each.level != levels[1]:
                clear += known.is_apart(each, 0.0, 0.01 / len(levels))
                holding += not known.is_apart(each, 0.15, 0.05)
    count = runs * (len(levels) - 1)
    return clear / count, holding / count


def describe(scenario: Scenario, result: Score) -> str:
    coverage = f"{result.coverage:.3f}" if result.coverage is not None else "-"
    width = f"{result.width:.2f}" if result.width else "-"
    verdicts = ", ".join(f"{name} {count}" for name, count in result.verdicts.most_common())
    return f"{scenario.name:32} {coverage:>6} {result.correct:7.3f} {width:>5} {result.pairs:5.0f}  {verdicts}"


def run_by_name(name: str, runs: int, seed: int, further: int) -> str:
    """In a process of its own, which cannot be handed a curve. `further`: the most pairs after the sweep."""
    (scenario,) = [each for each in scenarios() if each.name == name]
    scenario = replace(scenario, plan=replace(scenario.plan, refine_pairs=further))
    return describe(scenario, run(scenario, runs, seed))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--further", type=int, default=FULL.refine_pairs, help="pairs after the sweep, as a budget leaves"
    )
    options = parser.parse_args()
    names = [scenario.name for scenario in scenarios() if options.only in scenario.name]
    print(f"{'scenario':32} covers correct hi/lo pairs  verdicts")  # noqa: T201 - a program
    with ProcessPoolExecutor() as pool:
        for line in pool.map(
            partial(run_by_name, runs=options.runs, seed=options.seed, further=options.further), names
        ):
            print(line, flush=True)  # noqa: T201
    for noisy in (1.0, 3.0, 5.0, 10.0):
        clear, holding = score_quiet_levels(noisy, options.runs, options.seed)
        print(f"quiet beside {noisy:g} times the noise: clear {clear:.3f}, covers {holding:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
