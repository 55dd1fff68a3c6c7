"""How long answers will take under a plan: the prediction of the policy `curve`.

In: a node model, the coming demand, and the share of the low-load engine. Out: seconds. Pure.
"""

from dataclasses import dataclass

from gateway.routing.policies.node_model import EngineModel, NodeModel

ROUNDS = 12  # of the fixed point, which halves its distance in each
OVERLOAD = 1.5  # how much worse than its in-flight an engine is whose queue grows
FULL = 0.98  # of an engine's most answers a second: above that its queue grows


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


def predict_s(node: NodeModel, shape: Shape, low: Part, high: Part) -> float:
    """Returns the mean seconds of an answer, over both engines.

    Each engine's in-flight settles where as many arrive as finish (Little's law: in-flight = rate x time), which its
    own step time decides, and the other engine's as far as the two interfere. Where no such point exists, capacity and
    the queue count. What runs now is on its way to that point: the mean of both is what an answer meets.
    """
    settled = _settle(node, shape, low.rate, high.rate)
    met = tuple((settled[index] + part.present) / 2 for index, part in enumerate((low, high)))
    times = _answers_s(node, shape, *met)
    weights = [part.rate + part.present / max(time, 1e-3) for part, time in zip((low, high), times, strict=True)]
    penalties = [
        OVERLOAD if part.rate > FULL * engine.answers_per_s(shape.prompt_tokens, shape.answer_tokens) else 1.0
        for engine, part in zip(node, (low, high), strict=True)
    ]
    total = sum(weights)
    if total <= 0:
        return times[0] if low.rate >= high.rate else times[1]
    return sum(weight * time * penalty for weight, time, penalty in zip(weights, times, penalties, strict=True)) / total


def _settle(node: NodeModel, shape: Shape, low_rate: float, high_rate: float) -> tuple[float, float]:
    most = tuple(
        engine.max_in_flight * max(1.0, rate / engine.answers_per_s(shape.prompt_tokens, shape.answer_tokens))
        for engine, rate in zip(node, (low_rate, high_rate), strict=True)
    )
    low, high = min(low_rate, most[0]), min(high_rate, most[1])
    for _ in range(ROUNDS):
        low_s, high_s = _answers_s(node, shape, low, high)
        low, high = min((low + low_rate * low_s) / 2, most[0]), min((high + high_rate * high_s) / 2, most[1])
    return low, high


def _answers_s(node: NodeModel, shape: Shape, low: float, high: float) -> tuple[float, float]:
    """Returns an answer's seconds on each engine while so many are in flight on both."""
    low_step, high_step = node.low.step_s(low), node.high.step_s(high)
    # An engine with less than one request in flight on average works only part of the time.
    low_beside = low_step + node.interference * min(high, 1.0) * high_step
    high_beside = high_step + node.interference * min(low, 1.0) * low_step
    return _answer_s(node.low, shape, low_beside), _answer_s(node.high, shape, high_beside)


def _answer_s(engine: EngineModel, shape: Shape, step_s: float) -> float:
    return shape.prompt_tokens / engine.prefill_tokens_per_s + shape.answer_tokens * step_s
