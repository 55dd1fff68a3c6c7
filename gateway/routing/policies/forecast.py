"""How long answers, or their first tokens, will take under a plan: the prediction of the policy `curve`.

In: a node model, the coming demand, and the share of the low-load engine. Out: seconds. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.routing.policies.node_model import EngineModel, NodeModel

HORIZON_S, STEPS = 4.0, 12  # of a forecast


@dataclass(frozen=True, slots=True)
class Shape:
    """The mean lengths of recent requests, in tokens."""

    prompt_tokens: float
    answer_tokens: float


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan gives one engine: arrivals a second, and how many of those that run now."""

    rate: float
    present: float


class Objective(NamedTuple):
    """What a plan is to keep short. `times_s` returns it in seconds on each engine with so many in flight on both.

    None: it is the time of a whole answer. `running`: how much of it those still have before them, in the mean, that
    run already.
    """

    times_s: Callable[[NodeModel, Shape, float, float], tuple[float, float]] | None
    running: float


def predict_s(node: NodeModel, shape: Shape, low: Part, high: Part, objective: Objective) -> float:
    """Returns the mean seconds of an answer, or what else is the objective, over both engines and the next HORIZON_S.

    In-flight changes by what arrives and what finishes (dn/dt = rate - n / time), and an answer's time follows from it.
    The point at which it would settle does not count: a rate that chance has raised above what an engine completes has
    none, and would show a queue of minutes where there are seconds.
    """
    counts, rates, beat_s = [low.present, high.present], (low.rate, high.rate), HORIZON_S / STEPS
    total_s = weight = 0.0
    for _ in range(STEPS):
        times = answers_s(node, shape, *counts)
        wanted = objective.times_s(node, shape, *counts) if objective.times_s else times
        for index, rate in enumerate(rates):
            total_s += rate * beat_s * wanted[index]
            weight += rate * beat_s
            counts[index] = _go_on(counts[index], rate, times[index], beat_s)
    times = (objective.times_s or answers_s)(node, shape, *counts)
    for part, time_s in zip((low, high), times, strict=True):  # what comes after the horizon begins where that ends
        total_s += part.present * objective.running * time_s
        weight += part.present * objective.running
    return total_s / weight if weight else times[low.rate < high.rate]


def _go_on(count: float, rate: float, time_s: float, beat_s: float) -> float:
    """Returns what is in flight a beat later."""
    if time_s <= beat_s:  # all that runs has finished by then
        return rate * time_s
    return count + beat_s * (rate - count / time_s)


def answers_s(node: NodeModel, shape: Shape, low: float, high: float) -> tuple[float, float]:
    """Returns an answer's seconds on each engine while so many are in flight on both."""
    low_step, high_step = _steps_s(node, low, high)
    return _answer_s(node.low, shape, low_step), _answer_s(node.high, shape, high_step)


def first_tokens_s(node: NodeModel, shape: Shape, low: float, high: float) -> tuple[float, float]:
    """Returns the seconds to an answer's first token: longer beside the other engine as the steps are."""
    low_s, high_s = (
        shape.prompt_tokens / engine.prefill_tokens_per_s + engine.ttft_s(count) * beside_s / engine.step_s(count)
        for engine, count, beside_s in zip(node, (low, high), _steps_s(node, low, high), strict=True)
    )
    return low_s, high_s


ANSWER = Objective(None, 0.5)
TTFT = Objective(first_tokens_s, 0.0)


def _steps_s(node: NodeModel, low: float, high: float) -> tuple[float, float]:
    """Returns the seconds of each engine's steps while so many are in flight on both."""
    low_step, high_step = node.low.step_s(low), node.high.step_s(high)
    # An engine with less than one request in flight on average works only part of the time.
    return (
        low_step + node.interference * min(high, 1.0) * high_step,
        high_step + node.interference * min(low, 1.0) * low_step,
    )


def _answer_s(engine: EngineModel, shape: Shape, step_s: float) -> float:
    return shape.prompt_tokens / engine.prefill_tokens_per_s + shape.answer_tokens * step_s
