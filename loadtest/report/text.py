"""The sentences and figures that the terminal and all reports share. Pure."""

import math

from loadtest.decide.cost import Cost, Price
from loadtest.decide.crossing import Verdict
from loadtest.results.curves import THROUGHPUT, Objective, make_curve
from loadtest.results.plan import Plan
from loadtest.results.result import Result

SENTENCES = {
    Verdict.CROSSING: "{low} is better below {places} in flight, {high} above",
    Verdict.REVERSED: "{high} is better below {places} in flight, {low} above",
    Verdict.ALWAYS_LOW: "{low} is at least as good at every level up to {most}",
    Verdict.ALWAYS_HIGH: "{high} is at least as good at every level up to {most}",
    Verdict.TIE: "no difference beyond the tie band at any level up to {most}",
    Verdict.SEVERAL: "the backends change places more than once: near {places} in flight",
    Verdict.UNDECIDED: "undecided: {doubt}",
}
ADVICE = {
    Verdict.ALWAYS_LOW: "for {low} alone, set up above any load you expect",
    Verdict.ALWAYS_HIGH: "for {high} alone, make it the model's only backend",
    Verdict.TIE: "either backend serves as well",
    Verdict.REVERSED: "swap its low ({low}) and high ({high}) and calibrate again",
    Verdict.SEVERAL: "no single threshold is right",
    Verdict.UNDECIDED: "it takes more repeats to decide",
    Verdict.CROSSING: "its place is known too vaguely; it takes more repeats, or --accept-wide",
}


def show_ms(seconds: float | None) -> str:
    if seconds is None:
        return "n/a"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def show_rate(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 1000 else f"{rate:,.0f}"


def show_tokens(tokens: float | None) -> str:
    """Shows tokens in millions."""
    return "n/a" if tokens is None else f"{tokens / 1e6:,.3g}"


def show_money(amount: float | None, price: Price | None = None) -> str:
    """Shows an amount with the currency of `price`, if it has one."""
    if amount is None:
        return "n/a"
    figure = f"{amount:,.2f}" if amount >= 10 else f"{amount:.3g}"
    return f"{figure} {price.currency if price else ''}".rstrip()


def show_ratio(gain: float) -> str:
    return f"{math.exp(gain):.3f}"


def describe_work(plan: Plan) -> str:
    """Describes the length of answers, which the threshold holds for, and the repeats."""
    repeats = f", {plan.repeats} repeats" if plan.repeats > 1 else ""
    return f"{plan.mode}: exactly {plan.tokens} tokens per answer{repeats}"


def describe_finding(objective: Objective, result: Result) -> str:
    """Describes which backend is better at which levels. A run that was broken off has no verdict."""
    finding = result.findings.get(objective.name)
    if finding is None:
        return "not measured to the end"
    levels = ", ".join(map(str, finding.doubtful))
    return SENTENCES[finding.verdict].format(
        low=result.system.low,
        high=result.system.high,
        most=max(result.plan.levels),
        places=" and ".join(f"{change.point:.1f}" for change in finding.changes),
        doubt=f"too noisy at {levels} in flight" if levels else "too few measurements",
    )


def describe(objective: Objective, result: Result) -> str:
    """Describes verdict and confidence set in one line."""
    where = describe_set(objective, result)
    return describe_finding(objective, result) + (f" ({where})" if where else "")


def describe_threshold(result: Result) -> str:
    """Describes the threshold and whether it is in force, or what an operator may do without one."""
    if result.threshold:
        setting = f"up {result.threshold.up}, down {result.threshold.down}"
        state = describe_applied(result) if _is_applied(result, "up") else "not applied"
        return f"{setting} (outside the 95 % set, and {result.plan.margin:.0%} or more from the crossing), {state}"
    if result.finding is None or result.failure:
        return f"none: {result.failure}"
    advice = ADVICE[result.finding.verdict].format(low=result.system.low, high=result.system.high)
    return f"none; {advice}"


def describe_node(result: Result) -> str:
    """Describes the node model, and whether a policy by it is in force; empty where there is none."""
    if result.node is None:
        return ""
    return f"{result.node}, {describe_applied(result) if _is_applied(result, 'node') else 'not applied'}"


def describe_applied(result: Result) -> str:
    return f"applied as policy version {result.applied['version']}" if result.applied else "the policy stays as it is"


def _is_applied(result: Result, key: str) -> bool:
    return result.applied is not None and result.applied.get(key) is not None


def describe_set(objective: Objective, result: Result) -> str:
    """Describes where the crossing may be; empty where there is not exactly one."""
    finding = result.findings.get(objective.name)
    if finding is None or finding.change is None:
        return ""
    parts = " or ".join(f"{low:.3g} to {high:.3g}" for low, high in finding.change.set)
    return f"95 % sure: {parts}"


# Costs.


def name_money(cost: Cost) -> str:
    currency = cost.price.currency if cost.price else ""
    return f"{currency or 'money'} per 1M tok"


def describe_costs(result: Result) -> list[str]:
    """Returns a sentence for each backend whose GPUs are known: what it costs at the level where it costs least."""
    sentences = (_describe_cost(result, backend) for backend in result.system.backends)
    return [sentence for sentence in sentences if sentence]


def _describe_cost(result: Result, backend: str) -> str | None:
    cost = result.plan.known_cost
    gpus, rates = cost.find_gpus(backend), make_curve(result.cells, backend, THROUGHPUT.read)
    if gpus is None or not rates:
        return None
    level, rate = max(rates, key=lambda point: point[1])
    figures = [f"{show_tokens(cost.find_tokens_per_gpu_hour(backend, rate))} million tokens per GPU-hour"]
    money = cost.find_per_million(backend, rate)
    if money is not None:
        figures.append(f"{show_money(money, cost.price)} per million tokens")
    return f"{backend} on {gpus} GPU{'s' if gpus > 1 else ''}: at best {', '.join(figures)}, at {level} in flight"
