"""What TensorRT-LLM reports about itself on Triton's metrics page, computed from any engine's numbers.

In: an engine's load. Out: gauges with the names and labels TensorRT-LLM gives them (custom_metrics_reporter.cc).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Gauges:
    """Values by that of `label`; every sample also has the labels model and version."""

    name: str
    label: str
    values: Mapping[str, float]


class EngineLoad(Protocol):
    """An engine at one moment: requests that it computes, that wait for it, and how many it computes at most; tokens in
    its cache, of so many, in blocks of `tokens_per_block`; and its steps since the start.
    """

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def kv_tokens_used(self) -> int: ...

    @property
    def kv_tokens_total(self) -> int: ...

    @property
    def tokens_per_block(self) -> int: ...

    @property
    def steps(self) -> int: ...


def report(load: EngineLoad) -> tuple[Gauges, ...]:
    return (
        Gauges("nv_trt_llm_request_metrics", "request_type", _requests(load)),
        Gauges("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", _blocks(load)),
        Gauges("nv_trt_llm_general_metrics", "general_type", {"iteration_counter": load.steps}),
    )


def _requests(load: EngineLoad) -> dict[str, float]:
    """Without `context`: the engine does not tell who is in prefill."""
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
