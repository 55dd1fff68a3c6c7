"""Engines that recite at the pace of a measured pair, on both wires: answers, refusals, usage and metrics."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as rpc

from tests.engines.wires.servers import Server, read_metric, serving

Json: TypeAlias = dict[str, Any]  # Any: JSON
FAST = ("--time-scale", "0.1")
PROMPT = [7 * index % 1000 + 10 for index in range(20)]


@pytest.fixture(scope="module")
def vllm() -> Iterator[Server]:
    options = ("--port", "0", "--pace", "spec-plain:low", "--enable-prompt-tokens-details", *FAST)
    with serving("engines.reference.vllm_http", *options) as server:
        yield server


@pytest.fixture(scope="module")
def replicated() -> Iterator[Server]:
    with serving("engines.reference.vllm_http", "--port", "0", "--pace", "tp-dp:high", *FAST) as server:
        yield server


@pytest.fixture(scope="module")
def triton() -> Iterator[Server]:
    options = ("--grpc-port", "0", "--metrics-port", "0", "--pace", "tp-dp:low", *FAST)
    with serving("engines.reference.kserve", *options) as server:
        yield server


def ask(server: Server, prompt: list[int], tokens: int, **sampling: object) -> httpx.Response:
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": tokens} | sampling}
    return httpx.post(f"{server.addresses[0]}/inference/v1/generate", json=body, timeout=60)


def recite(server: Server, prompt: list[int], tokens: int) -> list[int]:
    ids: list[int] = ask(server, prompt, tokens).json()["choices"][0]["token_ids"]
    return ids


def recite_at_triton(server: Server, prompt: list[int], tokens: int, **more: bool) -> list[int]:
    """Raises ValueError with an error of the model."""
    request = pb.ModelInferRequest(model_name="tensorrt_llm")
    for name, values in (("input_ids", prompt), ("input_lengths", [len(prompt)]), ("request_output_len", [tokens])):
        request.inputs.add(name=name, datatype="INT32", shape=[1, len(values)])
        request.raw_input_contents.append(np.array(values, np.int32).tobytes())
    for name in ("streaming", *more):
        request.inputs.add(name=name, datatype="BOOL", shape=[1, 1])
        request.raw_input_contents.append(b"\x01")
    ids = list[int]()
    with grpc.insecure_channel(server.addresses[0].removeprefix("grpc://")) as channel:
        for message in rpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request])):
            if message.error_message:
                raise ValueError(message.error_message)
            ids += np.frombuffer(message.infer_response.raw_output_contents[0], np.int32).tolist()
    return ids


def test_an_answer_that_moves_goes_on_as_it_would_have_on_either_wire(vllm: Server, triton: Server) -> None:
    whole = recite(vllm, PROMPT, 60)
    assert len(whole) == 60
    assert recite_at_triton(triton, PROMPT, 60) == whole
    for moved_after in (1, 11, 12, 13, 40):
        begun, left = [*PROMPT, *whole[:moved_after]], 60 - moved_after
        assert recite(vllm, begun, left) == whole[moved_after:]
        assert recite_at_triton(triton, begun, left) == whole[moved_after:]


def test_long_prompts_have_room_and_an_answer_ends_with_the_context(vllm: Server, triton: Server) -> None:
    prompt = [index % 1000 for index in range(8100)]
    answer = ask(vllm, prompt, 5000).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 92
    assert len(recite_at_triton(triton, prompt, 5000)) == 92
    card = httpx.get(f"{vllm.addresses[0]}/v1/models").json()["data"][0]
    assert card["max_model_len"] == 8192


def test_text_comes_with_every_token_and_a_stop_token_ends_it(vllm: Server) -> None:
    body: Json = {"prompt": PROMPT, "max_tokens": 40, "stream": True, "ignore_eos": True}
    url = f"{vllm.addresses[0]}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    assert len(lines) < 30  # two or three tokens in one event
    assert all('"text":""' not in line for line in lines)
    tenth = recite(vllm, PROMPT, 40)[9]
    choice = httpx.post(url, json=body | {"stream": False, "stop_token_ids": [tenth]}, timeout=60).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tenth)


def test_the_demos_engines_recite_alike_where_they_shall_not_compute(vllm: Server) -> None:
    options = ("--port", "0", "--pace", "demo:high", "--no-compute", *FAST)
    with serving("engines.reference.vllm_http", *options) as server:
        assert recite(server, PROMPT, 20) == recite(vllm, PROMPT, 20)
        assert "cache_config_info" not in httpx.get(f"{server.addresses[0]}/metrics").text


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"structured_outputs": {"regex": "a+"}}, "Structured outputs"),
    ],
)
def test_what_only_a_model_can_do_is_refused(vllm: Server, sampling: Json, field: str) -> None:
    answer = ask(vllm, PROMPT, 5, **sampling)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert "computes nothing" in answer.json()["error"]["message"]


def test_triton_refuses_log_probabilities_too(triton: Server) -> None:
    with pytest.raises(ValueError, match="return_log_probs is not supported by this engine: it computes nothing"):
        recite_at_triton(triton, PROMPT, 5, return_log_probs=True)


def test_usage_shows_what_a_prefix_cache_had(vllm: Server) -> None:
    prompt = [3 * index % 991 for index in range(100)]
    assert ask(vllm, prompt, 4).json()["usage"]["prompt_tokens_details"] is None
    again = ask(vllm, [*prompt[:50], *range(50)], 4).json()["usage"]
    assert again["prompt_tokens_details"] == {"cached_tokens": 48}
    body = {"prompt": prompt, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{vllm.addresses[0]}/v1/completions", json=body, timeout=60) as answer:
        usage = [line for line in answer.iter_lines() if '"choices":[]' in line]
    assert '"prompt_tokens_details":{"cached_tokens":96}' in usage[0]


def test_the_metrics_page_has_what_a_speculating_vllm_shows(vllm: Server) -> None:
    before, url = read_metric(f"{vllm.addresses[0]}/metrics", "vllm:generation_tokens_total"), vllm.addresses[0]
    recite(vllm, [1, 2, 3], 201)

    def read(name: str) -> float:
        return read_metric(f"{url}/metrics", f"vllm:{name}")

    assert read("generation_tokens_total") - before == 201
    drafts, accepted = read("spec_decode_num_drafts_total"), read("spec_decode_num_accepted_tokens_total")
    assert read("spec_decode_num_draft_tokens_total") == 3 * drafts
    assert 1 + accepted / drafts == pytest.approx(2.5, rel=0.1)  # answers' ends cut a step's tokens
    assert read("prompt_tokens_cached_total") <= read("prompt_tokens_total")
    cache = {"engine": "0", "block_size": "16", "num_gpu_blocks": "6473", "enable_prefix_caching": "True"}
    assert read_metric(f"{url}/metrics", "vllm:cache_config_info", **cache) == 1


def test_every_replica_shows_its_own_cache_and_no_speculation(replicated: Server) -> None:
    url = f"{replicated.addresses[0]}/metrics"
    for engine in "01":
        assert read_metric(url, "vllm:cache_config_info", engine=engine, num_gpu_blocks="11444") == 1
    page = httpx.get(url).text
    assert "spec_decode" not in page
    assert "python_info" in page
