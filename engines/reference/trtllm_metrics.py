"""What TensorRT-LLM reports about itself on Triton's metrics page, computed from the reference engine's numbers.

In: a runner's stats. Out: gauges with the names and labels TensorRT-LLM gives them (custom_metrics_reporter.cc).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engines.reference.runner import RunnerStats

TOKENS_PER_BLOCK = 32  # TensorRT-LLM's default; this engine keeps slots, so blocks are only a unit of account


@dataclass(frozen=True)
class Gauges:
    """Values by that of `label`; every sample also has the labels model and version."""

    name: str
    label: str
    values: Mapping[str, float]


def report(stats: RunnerStats) -> tuple[Gauges, ...]:
    return (
        Gauges("nv_trt_llm_request_metrics", "request_type", _requests(stats)),
        Gauges("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", _blocks(stats)),
        Gauges("nv_trt_llm_general_metrics", "general_type", {"iteration_counter": stats.steps}),
    )


def _requests(stats: RunnerStats) -> dict[str, float]:
    """Without `context`: the engine does not tell who is in prefill."""
    return {
        "active": stats.running + stats.waiting,
        "max": stats.capacity,
        "scheduled": stats.running,
        "waiting": stats.waiting,
    }


def _blocks(stats: RunnerStats) -> dict[str, float]:
    total = stats.kv_tokens_total // TOKENS_PER_BLOCK
    used = -(-stats.kv_tokens_used // TOKENS_PER_BLOCK)
    return {
        "max": total,
        "free": total - used,
        "used": used,
        "tokens_per": TOKENS_PER_BLOCK,
        "fraction": used / total,
    }
