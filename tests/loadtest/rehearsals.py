"""Simulated rehearsals whose true ratio is known, judged by the same code that decides about real ones.

    python -m tests.loadtest.rehearsals --runs 1000

prints for each scenario how often the reported interval held the truth, how often the policy was called worse, how
often it was decided, and after how many repeats. Answers have lengths, which a trace's arms share, take longer while
the load is high, and scatter one by one with heavy tails, slowly in the course of a trace, and from run to run.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.signal import lfilter

from loadtest.decide.paired import Ratio, Values
from loadtest.decide.regret import Rule, Verdict, find_regret
from loadtest.rehearsal.rehearse import LEAST_REPEATS

RULE = Rule(max_loss=0.05, most=5)
ALONE = ("best alone", "rival alone")
SLOW, REACH = 0.03, 30  # what neighbouring requests share: its standard deviation, and over how many it decays
OWN, TAIL = 0.1, 0.01  # of one request: its standard deviation, and how many have a tail (Pareto, 3) of 1.5 on average


@dataclass(frozen=True, slots=True)
class Scenario:
    """`truth`: the routed arm's time over that of the better engine. `scatter`: standard deviation of a whole run of
    an arm. `rival`: the other engine's time over the better one's, with `loud` times the scatter. `live`: the routed
    arm's scatter over that of the better engine. `drift`: standard deviation of what all arms of a repeat share.
    """

    truth: float
    scatter: float
    requests: int = 1000
    rival: float = 1.3
    loud: float = 1.0
    live: float = 1.0
    drift: float = 0.0

    def __str__(self) -> str:
        usual = Scenario(self.truth, self.scatter)
        others = [
            f"{name} {getattr(self, name):g}"
            for name in ("rival", "loud", "live", "drift")
            if getattr(self, name) != getattr(usual, name)
        ]
        return ", ".join([f"{self.truth:.2f}, scatter {self.scatter:.0%}, {self.requests} requests", *others])


@dataclass(frozen=True, slots=True)
class Judged:
    """One rehearsal's end."""

    ratio: Ratio
    verdict: Verdict
    repeats: int


def rehearse(scenario: Scenario, seed: int, rule: Rule = RULE) -> Judged:
    """Serves the trace again until it is decided, or has been served `rule.most` times."""
    chance = np.random.default_rng(seed)
    requests = _make_trace(scenario.requests, chance)
    arms: dict[str, list[Values]] = {"live": [], **{name: [] for name in ALONE}}
    for repeat in itertools.count(1):
        shared = math.exp(chance.normal(0, scenario.drift))
        for name, ratio, loud in (
            ("live", scenario.truth, scenario.live),
            (ALONE[0], 1.0, 1.0),
            (ALONE[1], scenario.rival, scenario.loud),
        ):
            run = shared * ratio * math.exp(chance.normal(0, scenario.scatter * loud))
            arms[name].append(run * _serve(requests, chance))
        found = find_regret("live", arms, ALONE, rule.most).over_best  # type: ignore[arg-type]  # arrays are sequences
        verdict = rule.judge(found)
        if repeat == rule.most or (repeat >= LEAST_REPEATS and verdict != "not decided"):
            return Judged(found, verdict, repeat)
    raise AssertionError


def _make_trace(count: int, chance: np.random.Generator) -> Values:
    part = np.arange(count) / count
    lengths = chance.lognormal(0, 0.8, count).clip(0.05, 8)
    return np.asarray(lengths * np.where((part > 0.2) & (part < 0.8), 1.8, 1.0))


def _serve(requests: Values, chance: np.random.Generator) -> Values:
    count, kept = len(requests), math.exp(-1 / REACH)
    slow = lfilter([SLOW * math.sqrt(1 - kept**2)], [1, -kept], chance.standard_normal(count + 5 * REACH))[5 * REACH :]
    tails = np.where(chance.random(count) < TAIL, 1 + chance.pareto(3, count), 1.0)
    return np.asarray(requests * np.exp(slow + chance.normal(0, OWN, count)) * tails)


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of runs, and the mean of their repeats."""

    coverage: float
    worse: float
    decided: float
    repeats: float


def run(scenario: Scenario, runs: int, seed: int = 0, rule: Rule = RULE) -> Score:
    judged = [rehearse(scenario, seed * 1_000_000 + number, rule) for number in range(runs)]
    truth = scenario.truth / min(scenario.rival, 1.0)
    return Score(
        sum((each.ratio.low or 0) <= truth <= (each.ratio.high or 0) for each in judged) / runs,
        sum(each.verdict == "worse" for each in judged) / runs,
        sum(each.verdict != "not decided" for each in judged) / runs,
        sum(each.repeats for each in judged) / runs,
    )


def scenarios() -> Iterator[Scenario]:
    for scatter in (0.02, 0.05, 0.1):
        for truth in (0.9, 1.0, 1.05, 1.1, 1.3):
            yield Scenario(truth, scatter)
    for scatter in (0.02, 0.05, 0.1):
        yield Scenario(1.0, scatter, rival=1.0)
        yield Scenario(1.05, scatter, rival=1.0)
        yield Scenario(1.05, scatter, rival=1.03)
    for requests in (200, 2000):
        for truth in (1.0, 1.05, 1.1):
            yield Scenario(truth, 0.02, requests)
    for truth in (1.05, 1.1):
        yield Scenario(truth, 0.02, loud=10)
        yield Scenario(truth, 0.02, live=2)
        yield Scenario(truth, 0.02, drift=0.1)


def describe(scenario: Scenario, runs: int, seed: int) -> str:
    score = run(scenario, runs, seed)
    return f"| {scenario} | {score.coverage:.3f} | {score.worse:.3f} | {score.decided:.3f} | {score.repeats:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| truth | covers | worse | decided | repeats |\n|---|---:|---:|---:|---:|")  # noqa: T201 - a program
    with ProcessPoolExecutor() as pool:
        for line in pool.map(partial(describe, runs=options.runs, seed=options.seed), scenarios()):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
