"""The cost of all-reduces: the shortest time of a step at each tensor parallelism (TP), and the best TP. Pure.

In: a model, a GPU, measured curves. Out: steps and choices. All degrees are compared on the same GPUs: TP=1 on four of
them is four replicas that share the requests. Knows no process and no file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.fabric.curve import Curve
from engines.fabric.datasheet import DataSheet
from engines.fabric.model import Model

REDUCES_PER_LAYER = 2
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PROMPTS = (128, 512, 2048, 8192)
# A higher TP has to be better by this share.
MARGIN = 0.05
MIN_KV_SHARE = 0.1  # of a GPU's memory: an engine with less has room for a handful of requests, if it starts at all


@dataclass(frozen=True, slots=True)
class Node:
    """The GPUs to be used, and their curves by TP, for degrees above one. `memory_bytes`: one GPU's."""

    gpus: int
    sheet: DataSheet
    memory_bytes: float | None
    decode: Mapping[int, Curve]
    prefill: Mapping[int, Curve]


@dataclass(frozen=True, slots=True)
class Step:
    """Lower bounds, in seconds, of one step of one replica whose batch is `tokens`."""

    tp: int
    tokens: int
    weights_s: float
    compute_s: float | None
    reduce_s: float

    @property
    def total_s(self) -> float:
        return max(self.weights_s, self.compute_s or 0.0) + self.reduce_s


@dataclass(frozen=True, slots=True)
class Row:
    """One load. `best`: the smallest TP that no other beats by MARGIN. `most`: the same by prefill's throughput."""

    load: int
    steps: Sequence[Step]
    best: int
    most: int | None = None


def find_degrees(model: Model, node: Node) -> tuple[list[int], list[str]]:
    """TP degrees that this model can have on these GPUs, and the reasons against the others that were measured."""
    degrees, reasons = [], []
    held = model.weights.held_bytes or model.weights.read_bytes
    for tp in sorted({1, *node.decode}):
        if model.heads % tp:
            reasons.append(f"TP {tp}: {model.heads} attention heads cannot be shared by {tp}")
        elif node.memory_bytes and held / tp > (1 - MIN_KV_SHARE) * node.memory_bytes:
            share = f"{held / tp / 1e9:.1f} of {node.memory_bytes / 1e9:.1f} GB are weights"
            reasons.append(f"TP {tp}: {share}, less than {MIN_KV_SHARE:.0%} are left for the KV cache")
        elif node.gpus % tp:
            reasons.append(f"TP {tp}: {node.gpus} GPUs are no whole number of replicas")
        else:
            degrees.append(tp)
    return degrees, reasons


def list_decode(model: Model, node: Node, degrees: Sequence[int]) -> list[Row]:
    """One row for each number of requests in flight on all GPUs: each has one token in the step of its replica.

    At a given number in flight, the shortest time per token is also the highest throughput (Little's law).
    """
    rows = []
    for load in DECODES:
        batches = ((tp, math.ceil(load * tp / node.gpus)) for tp in degrees)
        steps = [find_step(model, node.sheet, tokens, tp, node.decode.get(tp)) for tp, tokens in batches]
        rows.append(Row(load, steps, _choose({step.tp: step.total_s for step in steps})))
    return rows


def list_prefill(model: Model, node: Node, degrees: Sequence[int]) -> list[Row]:
    """One row for each length of prompt, read in one step: `best` for it alone, `most` where all replicas are busy."""
    rows = []
    for load in PROMPTS:
        steps = [find_step(model, node.sheet, load, tp, node.prefill.get(tp)) for tp in degrees]
        most = _choose({step.tp: step.total_s * step.tp for step in steps})
        rows.append(Row(load, steps, _choose({step.tp: step.total_s for step in steps}), most))
    return rows


def find_step(model: Model, sheet: DataSheet, tokens: int, tp: int, curve: Curve | None) -> Step:
    """The roofline of a decoder layer's matrices, plus its all-reduces, of which nothing overlaps.

    Weights: read once, bytes / (TP x bandwidth). Arithmetic: 2 operations for each weight and token (Kaplan et al.
    2020, arXiv 2001.08361, section 2.1). The longer of both counts (Williams et al. 2009, "Roofline"). Sums: two
    all-reduces of tokens x hidden activations in each layer, after attention and after the MLP (Shoeybi et al. 2019,
    arXiv 1909.08053, section 3). The KV cache is left out: on equal GPUs as much of it is read at every TP.
    """
    if sheet.memory is None:
        raise ValueError("the GPU's memory bandwidth is not known")
    flops = find_flops(model, sheet)
    compute_s = 2 * model.weights.count * tokens / (tp * flops) if flops else None
    weights_s = model.weights.read_bytes / (tp * sheet.memory)
    return Step(tp, tokens, weights_s, compute_s, find_reduce_s(model, tokens, curve))


def find_reduce_s(model: Model, tokens: int, curve: Curve | None) -> float:
    """Seconds of one step's all-reduces; none on a single GPU."""
    if curve is None:
        return 0.0
    return REDUCES_PER_LAYER * model.layers * curve.find_time_s(find_message_bytes(model, tokens))


def find_message_bytes(model: Model, tokens: int) -> int:
    return tokens * model.hidden * model.item_bytes


def find_flops(model: Model, sheet: DataSheet) -> float | None:
    """Finds operations per second, of 8 bits if weights have 8 and the GPU can; weights of fewer are widened to 16."""
    return (sheet.flops_8 or sheet.flops_16) if model.weights.item_bytes == 1 else sheet.flops_16


def _choose(costs: Mapping[int, float]) -> int:
    least = min(costs.values())
    return min(tp for tp, cost in costs.items() if cost * (1 - MARGIN) <= least)


def find_spans(rows: Sequence[Row], choices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns (first load, last load, TP) of neighbouring rows with the same choice."""
    spans: list[tuple[int, int, int]] = []
    for row, tp in zip(rows, choices, strict=True):
        if spans and spans[-1][2] == tp:
            spans[-1] = (spans[-1][0], row.load, tp)
        else:
            spans.append((row.load, row.load, tp))
    return spans


@dataclass(frozen=True, slots=True)
class Forecast:
    """`reasons`: those against degrees that were left out. `prefill` is empty where the GPU's arithmetic is not known.
    `largest`: the largest message that was measured, in bytes.
    """

    model: Model
    gpus: int
    degrees: Sequence[int]
    reasons: Sequence[str]
    decode: Sequence[Row]
    prefill: Sequence[Row]
    largest: int


def forecast(model: Model, node: Node) -> Forecast:
    """Makes the forecast; its rows are empty where no degree is possible."""
    degrees, reasons = find_degrees(model, node)
    decode = list_decode(model, node, degrees) if degrees else []
    prefill = list_prefill(model, node, degrees) if degrees and find_flops(model, node.sheet) else []
    largest = min(curve.timings[-1].size for curve in node.prefill.values())
    return Forecast(model, node.gpus, degrees, reasons, decode, prefill, largest)
