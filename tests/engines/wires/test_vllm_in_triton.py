"""The real tritonserver with vLLM's AsyncLLM behind our Python model: the same wire, and the reference engine's tokens.

Its stub runs NumPy 2 here, which it was not made for: every array below has come through the door that DLPack opens.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from grpc import aio

from tests.engines.wires.expected import complete
from tests.engines.wires.servers import ROOT, STARTUP_S, is_positive, is_zero, metric_becomes, serving, triton_ports
from tests.engines.wires.test_kserve_wire import PROMPT, Target, answer, ask, connected, exchange

pytestmark = [pytest.mark.stack, pytest.mark.timeout(STARTUP_S + 60), pytest.mark.xdist_group("vllm in triton")]
CAPACITY = 24
ARGUMENTS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": CAPACITY}
BLOCK = {"name": "nv_trt_llm_kv_cache_block_metrics", "model": "tensorrt_llm"}
REQUESTS = {"name": "nv_trt_llm_request_metrics", "model": "tensorrt_llm"}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "engine.json").write_text(json.dumps(ARGUMENTS))
    with pytest.MonkeyPatch.context() as patch, serving("engines.triton", *options(folder, patch)) as server:
        yield Target("tritonserver", server.addresses[0].removeprefix("grpc://"), server.addresses[2])


def options(folder: Path, patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    for name, value in {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        patch.setenv(name, value)
    return (
        *("--engine", "vllm", "--engine-python", str(ROOT / ".stacks/vllm/bin/python")),
        *("--engine-args", str(folder / "engine.json")),
        *(*triton_ports(), "--start-timeout", f"{STARTUP_S:g}"),
    )


@pytest.fixture(scope="module", autouse=True)
async def one_loop(triton: Target) -> AsyncIterator[None]:
    """All tests here share an event loop: gRPC's poller outlives a test's own, and reports to it when it is closed."""
    async with aio.insecure_channel(triton.grpc):
        yield


async def test_many_streams_at_once_each_give_the_reference_engines_tokens(triton: Target) -> None:
    prompts = [[5 + number, *PROMPT] for number in range(16)]
    answers = await asyncio.gather(*(answer(triton, prompt, 24) for prompt in prompts))
    assert answers == [complete(prompt, 24, ignore_eos=True) for prompt in prompts]


async def test_log_probabilities_and_a_bias_pass_the_door(triton: Target) -> None:
    parts = await exchange(triton, ask(max_tokens=4, return_log_probs=True))
    logprobs = [float(value) for part in parts for value in part.tensors["output_log_probs"].ravel()]
    assert all(value < 0 for value in logprobs)
    assert parts[-1].tensors["cum_log_probs"].tolist() == [[pytest.approx(sum(logprobs), rel=1e-5)]]
    bias = np.zeros(1024, np.float32)
    bias[77] = 100
    assert await answer(triton, PROMPT, 5, embedding_bias=bias) == [77] * 5


async def test_string_is_refused_with_the_cure_and_harms_nobody(triton: Target) -> None:
    (part,) = await exchange(triton, ask(guided_decoding_guide_type=b"json"))
    assert part.error.startswith("guided_decoding_guide_type: strings cannot be read here")
    assert "numpy<2 first on the stub's path" in part.error
    assert len(await answer(triton, PROMPT, 4)) == 4


async def test_metrics_count_who_waits_and_what_the_cache_holds(triton: Target) -> None:
    async with connected(triton) as stub:
        calls = [stub.ModelStreamInfer(iter([ask(max_tokens=1000)])) for _ in range(CAPACITY + 8)]
        try:
            await metric_becomes(lambda value: value == 8, triton.metrics, **REQUESTS, request_type="waiting")
            await metric_becomes(is_positive, triton.metrics, **BLOCK, kv_cache_block_type="used")
        finally:
            for call in calls:
                call.cancel()
    await metric_becomes(lambda value: value == CAPACITY, triton.metrics, **REQUESTS, request_type="max")
    for kind in ("waiting", "active"):
        await metric_becomes(is_zero, triton.metrics, **REQUESTS, request_type=kind)
