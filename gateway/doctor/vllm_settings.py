"""Reads a vLLM's settings from its metrics page, from /server_info, and from the options it was started with.

In: those, already fetched. Out: statements. Names are vLLM's, seen in 0.24 and 0.32. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gateway.doctor.statements import Statement, Topic
from gateway.evidence.exposition import find_labels

Json: TypeAlias = Mapping[str, Any]  # Any: another program's answer, read key by key

PAGE, INFO, OPTIONS = "its metrics page", "its /server_info", "the options that its process was started with"


def read_page(page: bytes) -> Iterator[Statement]:
    labels = next(find_labels(page, "vllm:cache_config_info"), None)
    if labels is None:  # not vLLM itself
        return
    if (caching := labels.get("enable_prefix_caching")) in {"True", "False"}:
        yield Statement(Topic.PREFIX_CACHING, caching == "True", PAGE)
    if (dtype := labels.get("cache_dtype", "auto")) != "auto":
        yield Statement(Topic.FP8_KV, dtype.startswith("fp8"), PAGE)
    if labels.get("block_size", "").isdigit() and labels.get("num_gpu_blocks", "").isdigit():
        yield Statement(Topic.PAGED_KV, True, f"{PAGE}, which counts blocks of {labels['block_size']} tokens")
    if (share := _number(labels.get("gpu_memory_utilization"))) is not None:
        yield Statement(Topic.GPU_SHARE, share, PAGE)
    # prometheus_client's page over several processes has no samples of the process that renders it.
    is_one = next(find_labels(page, "python_info"), None) is not None
    yield Statement(Topic.HAS_SEVERAL_API_PROCESSES, not is_one, PAGE)


def read_info(info: Json) -> Iterator[Statement]:
    """Reads GET /server_info?config_format=json, which a vLLM with VLLM_SERVER_DEV_MODE=1 answers."""
    config = _section(info, "vllm_config")
    model, scheduler = _section(config, "model_config"), _section(config, "scheduler_config")
    if isinstance(is_chunked := scheduler.get("enable_chunked_prefill"), bool):
        yield Statement(Topic.CHUNKED_PREFILL, is_chunked, INFO)
    if isinstance(capacity := scheduler.get("max_num_seqs"), int):
        yield Statement(Topic.CAPACITY, capacity, INFO)
    if "quantization" in model and (is_fp8 := find_fp8(str(model["quantization"]))) is not None:
        yield Statement(Topic.FP8, is_fp8, INFO)
    if isinstance(device := _section(config, "device_config").get("device"), str):
        yield Statement(Topic.IS_ON_GPU, device.startswith("cuda"), INFO)
    mode = _section(config, "compilation_config").get("cudagraph_mode")
    if model.get("enforce_eager") is True:
        yield Statement(Topic.CUDA_GRAPHS, False, INFO)
    elif mode is not None:
        yield Statement(Topic.CUDA_GRAPHS, not is_no_mode(str(mode)), INFO)


def is_no_mode(mode: str) -> bool:
    """Returns whether a CUDAGraphMode is NONE; it is written as NONE, CUDAGraphMode.NONE or 0."""
    return mode.upper().removeprefix("CUDAGRAPHMODE.") in {"NONE", "0"}


# vLLM's names of quantizations. Those of containers such as compressed-tensors and quark do not show what is inside.
IN_FP8 = frozenset({"fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt"})
NOT_IN_FP8 = frozenset({"none", "awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes", "gguf", "modelopt_fp4"})


def find_fp8(quantization: str) -> bool | None:
    """Returns whether that name means FP8 weights; None if it may mean several things."""
    name = quantization.lower()
    return True if name in IN_FP8 else False if name in NOT_IN_FP8 else None


def read_options(arguments: Sequence[str]) -> Iterator[Statement]:
    """Reads what a vLLM's command line sets. Defaults, and other programs' command lines, yield nothing."""
    if not any("vllm" in argument for argument in arguments):
        return
    options = _split(arguments)
    for option, topic, value in SWITCHES:
        if option in options:
            yield Statement(topic, value, f"{OPTIONS}: {option}")
    yield from _read_precision(options)
    for topic, option in NUMBERS:
        if (number := _number(options.get(option))) is not None:
            yield Statement(topic, number, f"{OPTIONS}: {option}")
    if (count := _number(options.get("--api-server-count"))) is not None:
        yield Statement(Topic.HAS_SEVERAL_API_PROCESSES, count > 1, f"{OPTIONS}: --api-server-count")


NUMBERS = (
    (Topic.CAPACITY, "--max-num-seqs"),
    (Topic.CONTEXT_LENGTH, "--max-model-len"),
    (Topic.GPU_SHARE, "--gpu-memory-utilization"),
)
# Options that turn a feature on or off, and which.
SWITCHES = (
    ("--enforce-eager", Topic.CUDA_GRAPHS, False),
    ("--enable-prefix-caching", Topic.PREFIX_CACHING, True),
    ("--no-enable-prefix-caching", Topic.PREFIX_CACHING, False),
    ("--enable-chunked-prefill", Topic.CHUNKED_PREFILL, True),
    ("--no-enable-chunked-prefill", Topic.CHUNKED_PREFILL, False),
    ("--kv-cache-memory-bytes", Topic.HAS_FIXED_CACHE, True),
)


def _read_precision(options: Mapping[str, str]) -> Iterator[Statement]:
    quantization, dtype = options.get("--quantization", ""), options.get("--kv-cache-dtype", "auto")
    if (is_fp8 := find_fp8(quantization)) is not None:
        yield Statement(Topic.FP8, is_fp8, f"{OPTIONS}: --quantization {quantization}")
    if dtype != "auto":
        yield Statement(Topic.FP8_KV, dtype.startswith("fp8"), f"{OPTIONS}: --kv-cache-dtype {dtype}")


SHORT = {"-q": "--quantization", "-asc": "--api-server-count"}


def _split(arguments: Sequence[str]) -> dict[str, str]:
    """Returns each option with its value, "" if it has none. vLLM accepts `_` for `-`."""
    options: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("-") and not argument.lstrip("-")[:1].isdigit():
            name, _, value = argument.partition("=")
            name = SHORT.get(name, name.replace("_", "-"))
            options[name] = value
        elif name and not options[name]:
            options[name] = argument
    return options


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # 16k, which vLLM takes too
        return None


def _section(document: Json, key: str) -> Json:
    inner = document.get(key)
    return inner if isinstance(inner, dict) else {}
