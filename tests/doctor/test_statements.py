"""What each source says of an engine's settings, as tables: logs, metrics pages, command lines, configurations."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.doctor import Statement, Topic, logs, make_account, vllm_settings
from gateway.doctor.statements import Account
from gateway.engine_kinds.triton import engine_folder, model_config
from gateway.engine_kinds.triton.model_config import TritonConfig


def values(statements: Iterable[Statement]) -> dict[Topic, float]:
    return {topic: statement.value for topic, statement in make_account(statements).items()}


def test_of_two_sources_the_first_is_believed() -> None:
    account: Account = make_account([
        Statement(Topic.FP8, True, "a page"),
        Statement(Topic.FP8, False, "a log"),
        Statement(Topic.CAPACITY, 8, "a log"),
    ])
    assert account == {
        Topic.FP8: Statement(Topic.FP8, True, "a page"),
        Topic.CAPACITY: Statement(Topic.CAPACITY, 8, "a log"),
    }


# A line of vLLM 0.32, CPU build, shortened in the middle.
CPU_LOG = (
    "(APIServer pid=4272) INFO 11-23 08:32:19 [api_utils.py:286] non-default args: {'max_model_len': 1024, "
    "'enforce_eager': True, 'max_num_seqs': 128}\n"
    "(EngineCore pid=4834) INFO 11-23 08:32:33 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/weights', dtype=torch.float32, max_seq_len=1024, tensor_parallel_size=1, quantization=None, "
    "enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, enable_prefix_caching=True, "
    "enable_chunked_prefill=True, compilation_config={'cudagraph_mode': <CUDAGraphMode.NONE: 0>}\n"
)
# As vLLM's sources write it on a GPU.
GPU_LOG = (
    "INFO [core.py:133] Initializing a V1 LLM engine (v0.24.0) with config: max_seq_len=8192, quantization=fp8, "
    "enforce_eager=False, kv_cache_dtype=fp8_e4m3, device_config=cuda, enable_prefix_caching=False, "
    "enable_chunked_prefill=False, compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}\n"
    "(ApiServer_0 pid=7) INFO: Application startup complete.\n(ApiServer_1 pid=8) INFO: Application startup complete.\n"
)
CPU = {
    Topic.CUDA_GRAPHS: False, Topic.FP8: False, Topic.PREFIX_CACHING: True, Topic.CHUNKED_PREFILL: True,
    Topic.IS_ON_GPU: False, Topic.CONTEXT_LENGTH: 1024, Topic.CAPACITY: 128,
}  # fmt: skip
GPU = {
    Topic.CUDA_GRAPHS: True, Topic.FP8: True, Topic.FP8_KV: True, Topic.PREFIX_CACHING: False,
    Topic.CHUNKED_PREFILL: False, Topic.IS_ON_GPU: True, Topic.CONTEXT_LENGTH: 8192,
    Topic.HAS_SEVERAL_API_PROCESSES: True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("log", "known"),
    [
        ("", {}),
        ("INFO: 127.0.0.1:5 - GET /health 200\n", {}),
        (CPU_LOG, CPU),
        (GPU_LOG, GPU),
        (CPU_LOG + GPU_LOG, GPU),  # a log that several starts were appended to
        (GPU_LOG + CPU_LOG, CPU),
        ("Graph capturing finished in 9 secs, took 0.61 GiB\n", {Topic.CUDA_GRAPHS: True}),
        (CPU_LOG + "Skipping CUDA graph capture. To turn on CUDA graph capture, ...\n", CPU),
        ("(ApiServer_0 pid=7) INFO: Started\n", {Topic.HAS_SEVERAL_API_PROCESSES: False}),
        ("config: quantization=compressed-tensors, quantization_config=None, seed=0\n", {}),
        ("config: quantization=modelopt_fp4, seed=0\n", {Topic.FP8: False}),
        ("[I] Creating CUDA graph instances for 12 batch sizes.\n", {Topic.CUDA_GRAPHS: True}),
        ("[W] cuda_graph_mode is not specified, will be set to false\n", {Topic.CUDA_GRAPHS: False}),
        ("[W] enable_chunked_context is not specified, will be set to false.\n", {Topic.CHUNKED_PREFILL: False}),
        (
            "[W] cuda_graph_mode is not specified, will be set to false\nPinned memory pool is created at '0x7f'\n",
            {},  # of a start before this one
        ),
    ],
)
def test_a_log_tells_of_its_last_start(log: str, known: Mapping[Topic, float]) -> None:
    assert values(logs.read_statements(log.splitlines())) == known


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ("vllm serve m", {}),
        ("vllm serve m --enforce-eager --max-num-seqs 64", {Topic.CUDA_GRAPHS: False, Topic.CAPACITY: 64}),
        ("vllm serve m --max_num_seqs=64", {Topic.CAPACITY: 64}),
        ("vllm serve m --max-model-len 16k", {}),
        ("vllm serve m -q fp8 --kv-cache-dtype fp8_e5m2", {Topic.FP8: True, Topic.FP8_KV: True}),
        ("vllm serve m --quantization awq --kv-cache-dtype auto", {Topic.FP8: False}),
        ("vllm serve m --quantization compressed-tensors", {}),  # of any precision
        ("vllm serve m --kv-cache-dtype bfloat16", {Topic.FP8_KV: False}),
        ("vllm serve m --no-enable-prefix-caching", {Topic.PREFIX_CACHING: False}),
        ("vllm serve m --enable-chunked-prefill", {Topic.CHUNKED_PREFILL: True}),
        ("vllm serve m --kv-cache-memory-bytes 40G", {Topic.HAS_FIXED_CACHE: True}),
        ("vllm serve m --gpu-memory-utilization 0.45", {Topic.GPU_SHARE: 0.45}),
        ("vllm serve m -asc 4", {Topic.HAS_SEVERAL_API_PROCESSES: True}),
        ("vllm serve m --api-server-count 1", {Topic.HAS_SEVERAL_API_PROCESSES: False}),
        ("pytest -q fp8 --max-num-seqs 3", {}),  # whatever else may have the port
    ],
)
def test_a_command_line_tells_what_it_sets(arguments: str, known: Mapping[Topic, float]) -> None:
    assert values(vllm_settings.read_options(arguments.split())) == known


CACHE_INFO = 'vllm:cache_config_info{block_size="16",cache_dtype="%s",enable_prefix_caching="%s",engine="0"%s} 1.0\n'


@pytest.mark.parametrize(
    ("page", "known"),
    [
        ("", {}),
        ('python_info{version="3.12"} 1.0\n', {}),  # any program's
        (
            CACHE_INFO % ("fp8_e4m3", "True", ',num_gpu_blocks="9",gpu_memory_utilization="0.9"'),
            {
                Topic.PREFIX_CACHING: True,
                Topic.FP8_KV: True,
                Topic.PAGED_KV: True,
                Topic.GPU_SHARE: 0.9,
                Topic.HAS_SEVERAL_API_PROCESSES: True,
            },
        ),
        (
            CACHE_INFO % ("auto", "False", ',num_gpu_blocks="None"') + 'python_info{version="3.12"} 1.0\n',
            {Topic.PREFIX_CACHING: False, Topic.HAS_SEVERAL_API_PROCESSES: False},
        ),
        (CACHE_INFO % ("bfloat16", "None", ""), {Topic.FP8_KV: False, Topic.HAS_SEVERAL_API_PROCESSES: True}),
    ],
)
def test_vllms_metrics_page_tells_of_its_cache_and_its_processes(page: str, known: Mapping[Topic, float]) -> None:
    assert values(vllm_settings.read_page(page.encode())) == known


@pytest.mark.parametrize(
    ("info", "known"),
    [
        ({}, {}),
        ({"vllm_config": "model='m', ..."}, {}),
        ({"vllm_config": {"model_config": {"enforce_eager": True}}}, {Topic.CUDA_GRAPHS: False}),
        ({"vllm_config": {"compilation_config": {"cudagraph_mode": 0}}}, {Topic.CUDA_GRAPHS: False}),
        ({"vllm_config": {"compilation_config": {"cudagraph_mode": "CUDAGraphMode.NONE"}}}, {Topic.CUDA_GRAPHS: False}),
        ({"vllm_config": {"compilation_config": {"cudagraph_mode": [2, 1]}}}, {Topic.CUDA_GRAPHS: True}),
        ({"vllm_config": {"model_config": {"quantization": "fp8"}}}, {Topic.FP8: True}),
        ({"vllm_config": {"model_config": {"quantization": None}}}, {Topic.FP8: False}),
        ({"vllm_config": {"model_config": {"quantization": "modelopt"}}}, {Topic.FP8: True}),
        ({"vllm_config": {"model_config": {"quantization": "quark"}}}, {}),
        ({"vllm_config": {"device_config": {"device": "cuda"}}}, {Topic.IS_ON_GPU: True}),
        ({"vllm_config": {"device_config": {"device": "cpu"}}}, {Topic.IS_ON_GPU: False}),
        (
            {"vllm_config": {"scheduler_config": {"max_num_seqs": 256, "enable_chunked_prefill": False}}},
            {Topic.CAPACITY: 256, Topic.CHUNKED_PREFILL: False},
        ),
    ],
)
def test_server_info_tells_what_vllm_resolved(info: Mapping[str, object], known: Mapping[Topic, float]) -> None:
    assert values(vllm_settings.read_info(info)) == known


def triton(backend: str = "tensorrtllm", **parameters: str) -> TritonConfig:
    return TritonConfig(backend, True, 8, model_config.INPUTS, model_config.OUTPUTS, parameters)


UNSET = {
    Topic.IS_ON_GPU: True, Topic.CUDA_GRAPHS: False, Topic.CHUNKED_PREFILL: False, Topic.PREFIX_CACHING: True,
    Topic.HAS_FIXED_CACHE: False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (triton("python", cuda_graph_mode="true"), {}),  # what another model means by it nobody knows
        (triton(), UNSET),
        (triton("python", gpt_model_path="/engines/8b"), UNSET),
        (triton(cuda_graph_mode="${cuda_graph_mode}"), UNSET),
        (triton(cuda_graph_mode="true"), UNSET | {Topic.CUDA_GRAPHS: True}),
        (triton(enable_chunked_context="True"), UNSET | {Topic.CHUNKED_PREFILL: True}),
        (triton(enable_chunked_context="yes"), UNSET),  # TensorRT-LLM reads true and 1
        (triton(enable_kv_cache_reuse="yes"), UNSET),  # and takes its default for what it cannot read
        (triton(enable_kv_cache_reuse="FALSE"), UNSET | {Topic.PREFIX_CACHING: False}),
        (triton(enable_kv_cache_reuse="0"), UNSET | {Topic.PREFIX_CACHING: False}),
        (triton(max_tokens_in_paged_kv_cache="100000"), UNSET | {Topic.HAS_FIXED_CACHE: True}),
        (triton(gpt_model_type="inflight_fused_batching"), UNSET | {Topic.IN_FLIGHT_BATCHING: True}),
        (triton(gpt_model_type="V1"), UNSET | {Topic.IN_FLIGHT_BATCHING: False}),
        (triton(gpt_model_type="${batching_strategy}"), UNSET),
    ],
)
def test_config_pbtxt_tells_what_tensorrt_llm_makes_of_it(config: TritonConfig, known: Mapping[Topic, float]) -> None:
    assert values(model_config.read_statements(config)) == known


def test_what_of_a_models_tensors_the_gateway_cannot_speak_is_named() -> None:
    inputs = {name: form for name, form in model_config.INPUTS.items() if name != "end_id"} | {"seed": ("UINT8", (2,))}
    assert list(model_config.find_differences(replace(triton(), max_batch_size=0, inputs=inputs))) == [
        "max_batch_size is 0, so its tensors have no batch dimension",
        "input end_id is missing",
        "input seed is UINT8 [2], not UINT64 [1]",
    ]


ENGINE = {
    "version": "1.2.1",
    "pretrained_config": {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
    "build_config": {
        "max_batch_size": 256,
        "max_seq_len": 8192,
        "kv_cache_type": "PAGED",
        "plugin_config": {"use_paged_context_fmha": True},
    },
}


OLD_ENGINE = {
    "pretrained_config": {"quantization": {"quant_algo": None}},
    "build_config": {"kv_cache_type": "continuous", "plugin_config": {"use_paged_context_fmha": False}},
}
BUILT = {Topic.PAGED_KV: True, Topic.FP8: True, Topic.FP8_KV: True, Topic.CAPACITY: 256, Topic.CONTEXT_LENGTH: 8192}
OLD = dict.fromkeys((Topic.PAGED_KV, Topic.FP8, Topic.FP8_KV, Topic.CHUNKED_PREFILL, Topic.PREFIX_CACHING), False)


@pytest.mark.parametrize(
    ("document", "known"),
    [("not JSON", {}), ("[]", {}), ("{}", {}), (json.dumps(ENGINE), BUILT), (json.dumps(OLD_ENGINE), OLD)],
)
def test_an_engine_directory_shows_its_build(tmp_path: Path, document: str, known: Mapping[Topic, float]) -> None:
    (tmp_path / "config.json").write_text(document)
    assert values(engine_folder.read_statements(tmp_path)) == known
    assert values(engine_folder.read_statements(tmp_path / "elsewhere")) == {}
