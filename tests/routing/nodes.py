"""Node models by the numbers of engines/reference/pairs.json, and demands for them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gateway.core import Arrivals, BackendDemand, Demand, FirstToken
from gateway.routing.policies import NodeModel

PAIRS = json.loads((Path(__file__).parents[2] / "engines/reference/pairs.json").read_text())
PROMPT_TOKENS, ANSWER_TOKENS = 80, 128
CONTEXT = PROMPT_TOKENS + ANSWER_TOKENS // 2
LATER = 100.0
BEAT_S = 0.05


def describe_node(pair: str) -> dict[str, Any]:  # Any: JSON
    """Returns a node model's JSON."""
    shape = {"prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS}
    return {**PAIRS[pair]["engines"], "interference": PAIRS[pair]["interference"], **shape}


def read_node(pair: str) -> NodeModel:
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
    """Three seconds at a rate; `before`: the rate until the last 0.3 s."""
    counts = [0.0]
    for beat in range(60):
        counts.append(counts[-1] + (rate if before is None or beat >= 54 else before) * BEAT_S)
    arrivals = tuple(Arrivals(now - 3 + BEAT_S * index, round(count)) for index, count in enumerate(counts))
    return Demand(arrivals, {"triton": low, "vllm": high}, (float(PROMPT_TOKENS),), float(ANSWER_TOKENS))
