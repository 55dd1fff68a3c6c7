"""Node models with numbers of their own, and demands for them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gateway.core import Arrivals, BackendDemand, Demand, FirstToken
from gateway.routing.policies import NodeModel

# About what tensor parallelism and a replica on each of two GPUs are: the first is better up to about 35 requests a
# second.
TP_DP: Mapping[str, Any] = {  # Any: JSON
    "low": {
        "steps_ms": [[1, 3.32], [8, 3.85], [32, 4.94], [64, 5.3], [96, 6.09], [160, 7.67], [320, 10.2]],
        "context_ms": 0.0157, "prompt_ms": 13.2, "attention_ms": 0.35, "eager_ms": 22.5, "mixed_ms": 9.7,
        "request_ms": 11.3, "max_sequences": 512, "kv_tokens": 366_208,
    },
    "high": {
        "steps_ms": [[1, 4.7], [4, 4.79], [16, 5.03], [32, 5.19], [48, 5.4], [80, 5.8], [160, 6.8]],
        "context_ms": 0.0397, "prompt_ms": 19.3, "attention_ms": 0.81, "eager_ms": 24.4, "mixed_ms": 8.1,
        "request_ms": 11.3, "replicas": 2, "max_sequences": 512, "kv_tokens": 183_104,
    },
    "interference": 1.5,
}  # fmt: skip
PAIRS = Path(__file__).parents[2] / "engines/reference/pairs.json"
PROMPT_TOKENS, ANSWER_TOKENS = 80, 128
CONTEXT = PROMPT_TOKENS + ANSWER_TOKENS // 2
LATER = 100.0
BEAT_S = 0.05


def describe_node(pair: str | None = None) -> dict[str, Any]:  # Any: JSON
    """Returns a node model's JSON: with the numbers above, or those of a pair of engines/reference/pairs.json."""
    if pair is None:
        engines = TP_DP
    else:
        known = json.loads(PAIRS.read_text())[pair]
        engines = {**known["engines"], "interference": known["interference"]}
    return {**engines, "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS}


def read_node(pair: str | None = None) -> NodeModel:
    return TypeAdapter(NodeModel).validate_python(describe_node(pair))


def make_backend(
    in_flight: int, *, share: float = 0.0, generated: int = 0, firsts: Sequence[FirstToken] = ()
) -> BackendDemand:
    """`share`: of what arrives and of what is in flight, that can run nowhere else."""
    fixed = round(share * in_flight)
    context = CONTEXT * (in_flight - fixed)
    return BackendDemand(in_flight, fixed, share, in_flight, CONTEXT * in_flight, context, generated, tuple(firsts))


def make_demand(
    rate: float, low: BackendDemand, high: BackendDemand, *, before: float | None = None, now: float = LATER
) -> Demand:
    """Four seconds at a rate, after others; `before`: the rate until the last 0.3 s."""
    counts = [1000.0]
    for beat in range(80):
        counts.append(counts[-1] + (rate if before is None or beat >= 74 else before) * BEAT_S)
    arrivals = tuple(Arrivals(now - 4 + BEAT_S * index, round(count)) for index, count in enumerate(counts))
    return Demand(arrivals, {"triton": low, "vllm": high}, (float(PROMPT_TOKENS),), float(ANSWER_TOKENS))
