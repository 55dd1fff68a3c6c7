"""What routing costs on a trace: against the better engine of each moment, and against the better engine alone.

In: every answer's time, for each way of serving the same trace, in one or more repeats. Out: ratios with intervals,
and whether a policy may stay. Pure.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from loadtest.decide.paired import Ratio, Values, compare, spend_alpha
from loadtest.decide.soundness import Check

LEAST_ARRIVALS = 50  # in a window: the minimum of two noisy means is too low, the more so the fewer they are of

# An arm's answer times, in seconds: by repeat, then by request of the trace.
Times: TypeAlias = Sequence[Sequence[float]]
Verdict: TypeAlias = Literal["worse", "not worse", "not decided"]


@dataclass(frozen=True, slots=True)
class Regret:
    """One arm on one trace.

    `regret`: the sum of its answer times over the sum, for the same requests, of the better single engine's mean in
    their window. `over_best`: its mean answer time over that of the better single engine for the whole trace.
    """

    regret: Ratio
    over_best: Ratio
    mean_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy is worse than the better engine alone where its mean answer takes over `max_loss`, a share, longer. One
    looks after each repeat from the second on, of which there are at most `most`.
    """

    max_loss: float
    most: int

    def judge(self, over_best: Ratio) -> Verdict:
        """Decides by the whole interval; one repeat has none, and decides nothing."""
        if over_best.low is not None and over_best.low > 1 + self.max_loss:
            return "worse"
        is_sure = over_best.high is not None and over_best.high <= 1 + self.max_loss
        return "not worse" if is_sure else "not decided"


def check_regret(live: Regret, alone: Mapping[str, Regret], rule: Rule, what: str = "an answer") -> Check:
    """Returns a check: failed if in the mean `what` surely takes too long, a warning if that was not decided.

    `alone`: by backend.
    """
    best, ratio = min(alone, key=lambda name: alone[name].mean_s), live.over_best
    found = f"with routing live, {what} takes {ratio.value:.2f} times as long as with {best} alone"
    verdict = rule.judge(ratio)
    if verdict == "not worse":
        return Check("regret", "passed", f"{found}, while the load changes")
    if verdict == "worse":
        advice = f"The policy before is in force again. Use {best} alone: over the whole rehearsal it was faster."
        return Check("regret", "failed", f"REGRET: {found}, while the load changes. {advice}")
    limit = 1 + rule.max_loss
    doubt = f"one rehearsal has no interval to compare with the limit of {limit:.2f}"
    if ratio.low is not None:
        doubt = f"the interval {ratio.low:.2f} to {ratio.high:.2f} holds the limit of {limit:.2f}"
    advice = f"The policy stays. More rehearsals may decide: --rehearsals {2 * rule.most}."
    return Check("regret", "warning", f"REGRET NOT DECIDED: {found}, while the load changes: {doubt}. {advice}")


def find_regret(arm: str, arms: Mapping[str, Times], singles: Sequence[str], most: int = 1) -> Regret:
    """Returns the regret of an arm. All arms served the same requests, in the same number of repeats.

    `most`: the most repeats that there may be; intervals hold at each look up to there. Windows are of at least
    LEAST_ARRIVALS requests, the same for all arms.
    """
    times = {name: np.asarray(repeats, dtype=np.float64) for name, repeats in arms.items()}
    own, alone = times[arm], [times[name] for name in singles]
    alpha = spend_alpha(max(most, len(own)))[len(own) - 2] if len(own) > 1 else 1.0
    others = [values for name, values in times.items() if name != arm and name not in singles]
    slower = sorted(alone, key=lambda values: float(values.sum()))[1:]
    return Regret(
        regret=compare(own, [_join_best(alone)], [*others, *(each for each in slower if each is not own)], alpha),
        over_best=compare(own, alone, others, alpha),
        mean_s=float(own.mean()),
        p99_s=float(np.sort(own, axis=None)[min(int(0.99 * own.size), own.size - 1)]),
    )


def find_windows(count: int) -> Sequence[tuple[int, int]]:
    """Divides so many requests into windows of LEAST_ARRIVALS or more. Returns the first of each, and of the next."""
    windows = max(count // LEAST_ARRIVALS, 1)
    return list(itertools.pairwise(index * count // windows for index in range(windows + 1)))


def _join_best(alone: Sequence[Values]) -> Values:
    """Joins, for each window, the times of the engine whose mean over all repeats is the shorter there."""
    windows = find_windows(alone[0].shape[1])
    parts = [
        min((times[:, start:end] for times in alone), key=lambda part: float(part.sum())) for start, end in windows
    ]
    return np.concatenate(parts, axis=1)
