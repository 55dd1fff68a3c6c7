"""config.json of an engine directory, as TensorRT-LLM's Engine.save writes it (builder.py@008b2b8), in our words."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

CONFIG = "config.json"
# SpeculativeDecodingMode (models/modeling_utils.py) is a set of bits, and is written as their sum.
SPECULATION = {
    1: "none",
    2: "draft_tokens_external",
    4: "medusa",
    8: "lookahead_decoding",
    16: "explicit_draft_tokens",
    32: "eagle",
}


class NotAnEngine(Exception):
    """The directory holds no engine that can be read; the message says what is missing or wrong."""


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
    """What the engine was built as. `settings` are the limits and switches, by trtllm-build's names."""

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
    """Raises NotAnEngine where there is none, or one from before 0.8's builder, which names no version."""
    path = directory / CONFIG
    try:
        file = _File.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise NotAnEngine(f"{path}: {exc.strerror}") from exc
    except ValidationError as exc:
        error = exc.errors()[0]
        place = ".".join(map(str, error["loc"]))
        raise NotAnEngine(f"{path}: {place or 'the file'}: {error['msg']}") from exc
    return _read(file)


def _read(file: _File) -> EngineConfig:
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
        settings={**_read_limits(build), **_read_switches(build.plugin_config)},
    )


def _read_limits(build: _Build) -> dict[str, str | int | None]:
    return {
        "max_batch_size": build.max_batch_size,
        "max_num_tokens": build.max_num_tokens,
        "max_seq_len": build.max_seq_len,
        "max_beam_width": build.max_beam_width,
        "kv_cache_type": build.kv_cache_type,
        "tokens_per_block": build.plugin_config.tokens_per_block,
        "speculative_decoding_mode": SPECULATION.get(build.speculative_decoding_mode, "unknown"),
        "max_draft_len": build.max_draft_len or 0,
        **_read_lora(build),
    }


def _read_lora(build: _Build) -> dict[str, str | int | None]:
    if build.plugin_config.lora_plugin is None:
        return {"lora_plugin": "disable", "max_lora_rank": None}
    return {"lora_plugin": "enable", "max_lora_rank": (build.lora_config or _Lora()).max_lora_rank}


def _read_switches(plugins: _Plugins) -> dict[str, str | int | None]:
    """As trtllm-build takes them: enable and disable, or a plugin's type."""
    values = plugins.model_dump(exclude={"tokens_per_block", "lora_plugin"})
    return {name: _read_switch(value) for name, value in values.items()}


def _read_switch(value: bool | str | None) -> str:
    if isinstance(value, str):
        return value
    return "enable" if value else "disable"
