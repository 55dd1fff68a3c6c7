"""vLLM's metrics page, for all values that this engine has.

In: the served model, read at each scrape. Out: Prometheus text.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from engines.reference.vllm_http.served import ServedModel


class ModelMetrics(Collector):
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        stats = self._model.runner.stats
        yield self._gauge("num_requests_running", stats.running)
        yield self._gauge("num_requests_waiting", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", stats.kv_tokens_used / stats.kv_tokens_total)
        yield self._counter("prompt_tokens", [({}, stats.prompt_tokens)])
        yield self._counter("generation_tokens", [({}, stats.generated_tokens)])
        # Ours: tokens of a paced engine that were not computed when they were due, because the machine is too slow.
        yield self._gauge("late_tokens", stats.late_tokens, prefix="crossover_")
        finished = self._model.finished.items()
        yield self._counter("request_success", [({"finished_reason": reason}, n) for reason, n in finished])

    def _gauge(self, name: str, value: float, prefix: str = "vllm:") -> Metric:
        family = Metric(f"{prefix}{name}", f"The reference engine's {name}.", "gauge")
        family.add_sample(f"{prefix}{name}", self._labels({}), value)
        return family

    def _counter(self, name: str, samples: list[tuple[Mapping[str, str], float]]) -> Metric:
        family = Metric(f"vllm:{name}", f"The reference engine's {name}_total.", "counter")
        for labels, value in samples:
            family.add_sample(f"vllm:{name}_total", self._labels(labels), value)
        return family

    def _labels(self, more: Mapping[str, str]) -> dict[str, str]:
        return {"engine": "0", "model_name": self._model.name, **more}


class MetricsPage:
    def __init__(self, model: ServedModel) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ModelMetrics(model))

    def render(self) -> bytes:
        return generate_latest(self._registry)
