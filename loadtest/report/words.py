"""The sentences and figures that the screen and both reports share. Pure."""

import math

from loadtest.crossing import Verdict
from loadtest.curves import Objective
from loadtest.plan import Plan
from loadtest.result import Result

ADVICE = {
    Verdict.ALWAYS_LOW: "for {low} alone, set up above any load you expect",
    Verdict.ALWAYS_HIGH: "for {high} alone, make it the model's only backend",
    Verdict.TIE: "either backend serves as well",
    Verdict.REVERSED: "swap its low ({low}) and high ({high}) and calibrate again",
    Verdict.SEVERAL: "no single threshold is right, or it takes more repeats to find it",
}


def show_ms(seconds: float | None) -> str:
    if seconds is None:
        return "n/a"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def show_rate(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 1000 else f"{rate:,.0f}"


def show_ratio(gain: float) -> str:
    return f"{math.exp(gain):.3f}"


def describe_work(plan: Plan) -> str:
    """What the figures are for; a threshold holds for this length of answer only."""
    repeats = f", {plan.repeats} repeats" if plan.repeats > 1 else ""
    return f"{plan.mode}: exactly {plan.tokens} tokens per answer{repeats}"


def describe_crossover(objective: Objective, result: Result) -> str:
    """Who is better where. A run that was broken off has no verdict."""
    crossover = result.crossovers.get(objective.name)
    if crossover is None:
        return "not measured to the end"
    low, high, most = result.subject.low, result.subject.high, max(result.plan.levels)
    match crossover.verdict:
        case Verdict.CROSSING | Verdict.REVERSED:
            below, above = (low, high) if crossover.verdict is Verdict.CROSSING else (high, low)
            return f"{below} is better below {crossover.point:.1f} in flight, {above} above"
        case Verdict.ALWAYS_LOW:
            return f"{low} is at least as good at every level up to {most}"
        case Verdict.ALWAYS_HIGH:
            return f"{high} is at least as good at every level up to {most}"
        case Verdict.TIE:
            return f"no difference beyond the tie band at any level up to {most}"
        case Verdict.SEVERAL:
            return "the backends change places more than once"


def describe(objective: Objective, result: Result) -> str:
    """Verdict and tie zone in one line."""
    tie = describe_tie(objective, result)
    return describe_crossover(objective, result) + (f" ({tie})" if tie else "")


def describe_threshold(result: Result) -> str:
    """What became of the threshold, or what an operator may do without one."""
    if result.threshold:
        setting = f"up {result.threshold.up}, down {result.threshold.down}"
        state = f"applied as policy version {result.applied.get('version')}" if result.applied else "not applied"
        return f"{setting} ({result.plan.margin:.0%} either side of the crossing), {state}"
    if result.crossover is None:
        return f"none: {result.failure}"
    advice = ADVICE[result.crossover.verdict].format(low=result.subject.low, high=result.subject.high)
    return f"none, the policy stays as it is; {advice}"


def describe_tie(objective: Objective, result: Result) -> str:
    """How far around the crossing it hardly matters; empty where there is none."""
    crossover = result.crossovers.get(objective.name)
    if crossover is None or crossover.tie_zone is None:
        return ""
    low, high = crossover.tie_zone
    return f"within {objective.band or result.plan.band:.0%} of each other from {low:.3g} to {high:.3g}"
