"""vLLM's metrics page, for all values that this engine has.

In: the served model, read at each scrape. Out: Prometheus text.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engines.reference.vllm_http.served import ServedModel

HELP, LABELS = "As vLLM reports it.", ("engine", "model_name")


class ModelMetrics(Collector):
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        stats, labels = self._model.runner.stats, ("0", self._model.name)
        gauges = {
            "vllm:num_requests_running": stats.running,
            "vllm:num_requests_waiting": stats.waiting,
            "vllm:kv_cache_usage_perc": stats.kv_tokens_used / stats.kv_tokens_total,
            # Ours: tokens of a paced engine that were not computed when they were due: the machine is too slow.
            "crossover_late_tokens": stats.late_tokens,
        }
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(name, HELP, labels=LABELS)
            gauge.add_metric(labels, value)
            yield gauge
        for name, count in (("prompt", stats.prompt_tokens), ("generation", stats.generated_tokens)):
            counter = CounterMetricFamily(f"vllm:{name}_tokens", HELP, labels=LABELS)
            counter.add_metric(labels, count)
            yield counter
        finished = CounterMetricFamily("vllm:request_success", HELP, labels=(*LABELS, "finished_reason"))
        for reason, count in self._model.finished.items():
            finished.add_metric((*labels, reason), count)
        yield finished


def make_registry(model: ServedModel) -> CollectorRegistry:
    """Makes the registry for prometheus_client's generate_latest."""
    registry = CollectorRegistry()
    registry.register(ModelMetrics(model))
    return registry
