"""Triton's metrics page: those `nv_trt_llm_*` and `nv_inference_*` values that this engine has.

In: the served model, read at each scrape. Out: an HTTP server of its own, as Triton has on its metrics port.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from engines.process import cannot_listen
from engines.reference.kserve.messages import MODEL_VERSION
from engines.reference.kserve.model import ServedModel
from engines.reference.trtllm_metrics import report


class ModelMetrics(Collector):
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        for gauges in report(self._model.runner.stats):
            yield self._family(gauges.name, gauges.label, gauges.values)
        counts = self._model.counts
        yield self._family("nv_inference_request_success", None, {"": counts.success})
        yield self._family("nv_inference_request_failure", "reason", counts.failure)
        # Ours: tokens of a paced engine that were not computed when they were due, because the machine is too slow.
        yield self._family("crossover_late_tokens", None, {"": self._model.runner.stats.late_tokens})

    def _family(self, name: str, label: str | None, values: Mapping[str, float]) -> Metric:
        # Untyped: prometheus_client appends _total to a counter's name, which Triton does not.
        family = Metric(name, "As Triton and TensorRT-LLM report it.", "untyped")
        labels = {"model": self._model.name, "version": MODEL_VERSION}
        for key, value in values.items():
            family.add_sample(name, labels | ({label: key} if label else {}), value)
        return family


@contextmanager
def serve_metrics(model: ServedModel, host: str, port: int) -> Iterator[int]:
    """Yields the port. The server has a thread of its own, so that a scrape waits for no token."""
    registry = CollectorRegistry()
    registry.register(ModelMetrics(model))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as exc:
        raise cannot_listen(host, port, exc.strerror) from exc
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
