"""config.json of an engine directory, as TensorRT-LLM's Engine.save writes it (builder.py@008b2b8)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from engines.directory.json_file import parse_json_file

CONFIG = "config.json"
LIMITS = ("max_batch_size", "max_num_tokens", "max_beam_width")
# SpeculativeDecodingMode (models/modeling_utils.py) is a set of bits, written as their sum.
SPECULATION = {
    1: "none",
    2: "draft_tokens_external",
    4: "medusa",
    8: "lookahead_decoding",
    16: "explicit_draft_tokens",
    32: "eagle",
}


class NotAnEngine(Exception):
    """The directory holds no engine that can be read; the message gives the reason."""


class _Mapping(BaseModel):
    world_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1


class _Quantization(BaseModel):
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None


class _Pretrained(BaseModel):
    architecture: str
    dtype: str
    mapping: _Mapping = _Mapping()
    quantization: _Quantization | None = None


class _Plugins(BaseModel):
    use_paged_context_fmha: bool | None = None
    use_fp8_context_fmha: bool | None = None
    reduce_fusion: bool | None = None
    user_buffer: bool | None = None
    multiple_profiles: bool | None = None
    gemm_plugin: str | None = None
    gemm_swiglu_plugin: str | None = None
    low_latency_gemm_plugin: str | None = None
    low_latency_gemm_swiglu_plugin: str | None = None
    lora_plugin: str | None = None
    tokens_per_block: int = 32


class _Lora(BaseModel):
    max_lora_rank: int = 64


def _read_kv_cache_type(value: object) -> object:
    return value.removeprefix("KVCacheType.").lower() if isinstance(value, str) else value


class _Build(BaseModel):
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_beam_width: int
    kv_cache_type: Annotated[str, BeforeValidator(_read_kv_cache_type)] = "paged"
    speculative_decoding_mode: int = 1
    max_draft_len: int | None = None
    plugin_config: _Plugins
    lora_config: _Lora | None = None


class _File(BaseModel):
    version: str = Field(min_length=1)
    pretrained_config: _Pretrained
    build_config: _Build


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The build of an engine. `settings`: limits and switches, by trtllm-build's names."""

    version: str
    architecture: str
    dtype: str
    tp: int
    pp: int
    cp: int
    world_size: int
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    settings: Mapping[str, str | int | None]


def read_engine_config(directory: Path) -> EngineConfig:
    """Reads config.json. Raises NotAnEngine without it, and for one from before 0.8's builder, which has no version."""
    file = parse_json_file(directory / CONFIG, TypeAdapter(_File), NotAnEngine)
    model, build, mapping = file.pretrained_config, file.build_config, file.pretrained_config.mapping
    return EngineConfig(
        version=file.version,
        architecture=model.architecture,
        dtype=model.dtype,
        tp=mapping.tp_size,
        pp=mapping.pp_size,
        cp=mapping.cp_size,
        world_size=mapping.world_size,
        quant_algo=model.quantization.quant_algo if model.quantization else None,
        kv_cache_quant_algo=model.quantization.kv_cache_quant_algo if model.quantization else None,
        settings={**_read_build(build), **_read_switches(build.plugin_config)},
    )


def _read_build(build: _Build) -> dict[str, str | int | None]:
    has_lora = build.plugin_config.lora_plugin is not None
    return {
        **{name: getattr(build, name) for name in (*LIMITS, "max_seq_len", "kv_cache_type")},
        "tokens_per_block": build.plugin_config.tokens_per_block,
        "speculative_decoding_mode": SPECULATION.get(build.speculative_decoding_mode, "unknown"),
        "max_draft_len": build.max_draft_len or 0,
        "lora_plugin": "enable" if has_lora else "disable",
        "max_lora_rank": (build.lora_config or _Lora()).max_lora_rank if has_lora else None,
    }


def _read_switches(plugins: _Plugins) -> dict[str, str | int | None]:
    """Returns the switches as trtllm-build takes them: enable and disable, or a plugin's type."""
    values = plugins.model_dump(exclude={"tokens_per_block", "lora_plugin"})
    return {
        name: value if isinstance(value, str) else "enable" if value else "disable" for name, value in values.items()
    }
