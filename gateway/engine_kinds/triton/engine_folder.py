"""Reads the settings of a TensorRT-LLM engine from its directory, if it can be read from here.

In: the directory that a model's gpt_model_path names. Out: statements. The keys are those of the config.json that
trtllm-build writes (TensorRT-LLM 1.2).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gateway.doctor import Statement, Topic

Json: TypeAlias = Mapping[str, Any]  # Any: another program's file, read key by key


def read_statements(folder: Path) -> Iterator[Statement]:
    """Yields nothing if there is no such directory: the engine may be on another machine or in its own container."""
    try:
        document = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(document, dict):
        yield from _read(document, f"{folder / 'config.json'}")


def _read(document: Json, path: str) -> Iterator[Statement]:
    build, quantization = _section(document, "build_config"), _section(document, "pretrained_config", "quantization")
    plugins = _section(build, "plugin_config")
    if isinstance(kind := build.get("kv_cache_type"), str):
        yield Statement(Topic.PAGED_KV, kind.upper().endswith("PAGED"), f"kv_cache_type in {path}, which is {kind}")
    if quantization:
        yield Statement(Topic.FP8, "FP8" in str(quantization.get("quant_algo")), f"quant_algo in {path}")
        yield Statement(Topic.FP8_KV, "FP8" in str(quantization.get("kv_cache_quant_algo")), f"quantization in {path}")
    if plugins.get("use_paged_context_fmha") is False:
        # Both are asked for at start-up, and both need it.
        yield Statement(Topic.CHUNKED_PREFILL, False, f"{path}: built without use_paged_context_fmha")
        yield Statement(Topic.PREFIX_CACHING, False, f"{path}: built without use_paged_context_fmha")
    for topic, key in ((Topic.CAPACITY, "max_batch_size"), (Topic.CONTEXT_LENGTH, "max_seq_len")):
        if isinstance(value := build.get(key), int):
            yield Statement(topic, value, f"{key} in {path}")


def _section(document: Json, *keys: str) -> Json:
    for key in keys:
        inner = document.get(key)
        document = inner if isinstance(inner, dict) else {}
    return document
