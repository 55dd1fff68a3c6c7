"""vLLM's metrics page, for all values that this engine has.

In: the served model, read at each scrape. Out: Prometheus text.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, PlatformCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engines.reference.engine import EngineLoad
from engines.reference.vllm_http.served import ServedModel

HELP, LABELS = "As vLLM reports it.", ("engine", "model_name")
BLOCK_TOKENS = 16  # vLLM's default


class ModelMetrics(Collector):
    """The values of all replicas stand under engine 0, but for the cache's size, which each has."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        load, labels = self._model.runner.stats, ("0", self._model.name)
        for name, value in gauges(load).items():
            gauge = GaugeMetricFamily(name, HELP, labels=LABELS)
            gauge.add_metric(labels, value)
            yield gauge
        for name, count in counters(load).items():
            counter = CounterMetricFamily(f"vllm:{name}", HELP, labels=LABELS)
            counter.add_metric(labels, count)
            yield counter
        finished = CounterMetricFamily("vllm:request_success", HELP, labels=(*LABELS, "finished_reason"))
        for reason, count in self._model.finished.items():
            finished.add_metric((*labels, reason), count)
        yield finished
        if load.counts_blocks:
            yield cache_config(load)


def gauges(load: EngineLoad) -> Mapping[str, float]:
    return {
        "vllm:num_requests_running": load.running,
        "vllm:num_requests_waiting": load.waiting,
        "vllm:kv_cache_usage_perc": load.kv_tokens_used / load.kv_tokens_total,
        # Ours: tokens of a paced engine that were not computed when they were due: the machine is too slow.
        "crossover_late_tokens": load.late_tokens,
    }


def counters(load: EngineLoad) -> Mapping[str, int]:
    """Those of speculation and of a prefix cache are there only with it, as in vLLM."""
    counts = {"prompt_tokens": load.prompt_tokens, "generation_tokens": load.generated_tokens}
    if load.queried is not None:
        found = {"prompt_tokens_cached": load.found, "prefix_cache_hits": load.found}
        counts |= found | {"prefix_cache_queries": load.queried}
    if load.drafted:
        counts |= {
            "spec_decode_num_drafts": load.drafts,
            "spec_decode_num_draft_tokens": load.drafted,
            "spec_decode_num_accepted_tokens": load.accepted,
        }
    return counts


def cache_config(load: EngineLoad) -> Metric:
    family = GaugeMetricFamily(
        "vllm:cache_config_info", HELP, labels=("block_size", "enable_prefix_caching", "engine", "num_gpu_blocks")
    )
    blocks = load.kv_tokens_total // load.replicas // BLOCK_TOKENS
    for replica in range(load.replicas):
        family.add_metric((str(BLOCK_TOKENS), str(load.queried is not None), str(replica), str(blocks)), 1)
    return family


def make_registry(model: ServedModel) -> CollectorRegistry:
    """Makes the registry for prometheus_client's generate_latest."""
    registry = CollectorRegistry()
    if model.runner.stats.counts_blocks:
        PlatformCollector(registry)  # python_info, by which a vLLM's page of one process is known
    registry.register(ModelMetrics(model))
    return registry
