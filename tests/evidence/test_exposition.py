"""Prometheus pages: the few samples wanted, and nothing of what cannot be read."""

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.evidence.exposition import find_labels, sum_count

NAME = "vllm:num_requests_running"


@pytest.mark.parametrize(
    ("page", "count"),
    [
        (b'vllm:num_requests_running{engine="0"} 3.0\n', 3),
        (b"vllm:num_requests_running 3\n", 3),
        (b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3 1700000000000\n", 3),
        (b'vllm:num_requests_running{engine="0"} 3\r\nvllm:num_requests_running{engine="1"} 4\r\n', 7),
        (b'vllm:num_requests_running_total{engine="0"} 9\nvllm:num_requests_running{engine="0"} 0\n', 0),
        (b"vllm:num_requests_waiting 3\n", None),
        (b"", None),
        (b"<html>moved</html>", None),
        (b"vllm:num_requests_running NaN\n", None),
        (b"vllm:num_requests_running +Inf\n", None),
        (b"vllm:num_requests_running -1\n", None),
        (b"vllm:num_requests_running " + b"9" * 400 + b"\n", None),
        (b"vllm:num_requests_running three\n", None),
        (b'vllm:num_requests_running{engine="0} 3\n', None),
        (b'vllm:num_requests_running{engine="\xff"} 3\n', None),
        (b"vllm:num_requests_running 3\nvllm:num_requests_running{\n", None),  # half a sum is no count
        (b"vllm:num_requests_running", None),
        (b'vllm:num_requests_running{engine="0"} 1\n' * 256, 256),
        (b'vllm:num_requests_running{engine="0"} 1\n' * 257, None),  # more than there are engines
        (b'vllm:num_requests_running{engine="%b"} 1\n' % (b"x" * 10_000), None),
    ],
)
def test_a_count_is_the_sum_or_unknown(page: bytes, count: int | None) -> None:
    assert sum_count(page, NAME) == count


def test_labels_choose_samples_and_may_hold_anything() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("nv_trt_llm_request_metrics", "As TensorRT-LLM has it", ["request_type", "model"], registry=registry)
    for model in ("tensorrt_llm", 'odd "},= \\ \n name'):
        for number, kind in enumerate(("active", "scheduled", "waiting")):
            gauge.labels(kind, model).set(10 * len(model) + number)
    page = generate_latest(registry)
    for model in ("tensorrt_llm", 'odd "},= \\ \n name'):
        assert sum_count(page, "nv_trt_llm_request_metrics", request_type="active", model=model) == 10 * len(model)
    assert sum_count(page, "nv_trt_llm_request_metrics", request_type="active", model="other") is None
    assert {labels["request_type"] for labels in find_labels(page, "nv_trt_llm_request_metrics")} == {
        "active",
        "scheduled",
        "waiting",
    }
