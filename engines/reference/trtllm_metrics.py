"""TensorRT-LLM's own gauges on Triton's metrics page, computed from any engine's load.

In: an EngineLoad. Out: gauges with the names and labels of TensorRT-LLM's custom_metrics_reporter.cc.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engines.reference.engine import EngineLoad


@dataclass(frozen=True)
class Gauges:
    """Values by the value of `label`; every sample also has the labels model and version."""

    name: str
    label: str
    values: Mapping[str, float]


def report(load: EngineLoad) -> tuple[Gauges, ...]:
    return (
        Gauges("nv_trt_llm_request_metrics", "request_type", _requests(load)),
        Gauges("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", _blocks(load)),
        Gauges("nv_trt_llm_general_metrics", "general_type", {"iteration_counter": load.steps}),
    )


def _requests(load: EngineLoad) -> dict[str, float]:
    """Counts requests, without `context`: an EngineLoad does not show which requests are in prefill."""
    return {
        "active": load.running + load.waiting,
        "max": load.capacity,
        "scheduled": load.running,
        "waiting": load.waiting,
    }


def _blocks(load: EngineLoad) -> dict[str, float]:
    total = load.kv_tokens_total // load.tokens_per_block
    used = -(-load.kv_tokens_used // load.tokens_per_block)
    return {
        "max": total,
        "free": total - used,
        "used": used,
        "tokens_per": load.tokens_per_block,
        "fraction": used / total if total else 0.0,
    }
