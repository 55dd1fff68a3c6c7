"""config.json of an engine, as earlier releases wrote it and as 1.2's sources write it; what is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.directory.engine_config import NotAnEngine, read_engine_config

# The keys and forms of an engine that somebody built with 0.16 and published, cut to what is read and a few beside it.
PUBLISHED: dict[str, Any] = {
    "version": "0.16.0",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "mapping": {"world_size": 1, "gpus_per_node": 8, "cp_size": 1, "tp_size": 1, "pp_size": 1, "moe_tp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None, "group_size": 128, "exclude_modules": None},
    },
    "build_config": {
        "max_input_len": 1024,
        "max_seq_len": 4096,
        "opt_batch_size": None,
        "max_batch_size": 256,
        "max_beam_width": 1,
        "max_num_tokens": 8192,
        "kv_cache_type": "PAGED",
        "max_draft_len": 0,
        "speculative_decoding_mode": 1,
        "lora_config": {"lora_dir": [], "lora_ckpt_source": "hf", "max_lora_rank": 64, "lora_target_modules": []},
        "plugin_config": {
            "dtype": "bfloat16",
            "gpt_attention_plugin": "auto",
            "gemm_plugin": "bfloat16",
            "gemm_swiglu_plugin": None,
            "lora_plugin": None,
            "reduce_fusion": False,
            "tokens_per_block": 64,
            "use_paged_context_fmha": True,
            "multiple_profiles": False,
        },
    },
}


def write(folder: Path, document: object) -> Path:
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def changed(section: str, **changes: Any) -> dict[str, Any]:
    return {**PUBLISHED, section: {**PUBLISHED[section], **changes}}


def test_published_engine_is_read_in_trtllm_builds_words(tmp_path: Path) -> None:
    config = read_engine_config(write(tmp_path, PUBLISHED))
    assert (config.version, config.architecture, config.dtype) == ("0.16.0", "LlamaForCausalLM", "bfloat16")
    assert (config.tp, config.pp, config.cp, config.world_size) == (1, 1, 1, 1)
    assert config.settings == {
        "max_batch_size": 256,
        "max_num_tokens": 8192,
        "max_seq_len": 4096,
        "max_beam_width": 1,
        "kv_cache_type": "paged",
        "tokens_per_block": 64,
        "speculative_decoding_mode": "none",
        "max_draft_len": 0,
        "lora_plugin": "disable",
        "max_lora_rank": None,
        "use_paged_context_fmha": "enable",
        "use_fp8_context_fmha": "disable",
        "reduce_fusion": "disable",
        "user_buffer": "disable",
        "multiple_profiles": "disable",
        "gemm_plugin": "bfloat16",
        "gemm_swiglu_plugin": "disable",
        "low_latency_gemm_plugin": "disable",
        "low_latency_gemm_swiglu_plugin": "disable",
    }


@pytest.mark.parametrize(
    ("document", "setting", "value"),
    [
        (changed("build_config", speculative_decoding_mode=32), "speculative_decoding_mode", "eagle"),
        (changed("build_config", speculative_decoding_mode=4096), "speculative_decoding_mode", "unknown"),
        (changed("build_config", max_draft_len=None), "max_draft_len", 0),
        (changed("build_config", kv_cache_type="KVCacheType.CONTINUOUS"), "kv_cache_type", "continuous"),
        (changed("build_config", plugin_config={"lora_plugin": "bfloat16"}), "max_lora_rank", 64),
        (changed("build_config", plugin_config={"lora_plugin": "auto"}, lora_config=None), "lora_plugin", "enable"),
        (changed("build_config", plugin_config={"reduce_fusion": None}), "reduce_fusion", "disable"),
    ],
)
def test_setting_is_read(tmp_path: Path, document: dict[str, Any], setting: str, value: object) -> None:
    assert read_engine_config(write(tmp_path, document)).settings[setting] == value


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"builder_config": {"name": "llama"}}, "version: Field required"),  # before the builder that names one
        ({**PUBLISHED, "version": ""}, "version: "),
        (changed("build_config", max_batch_size="many"), "build_config.max_batch_size: "),
        ([], "the file: "),
    ],
)
def test_file_that_is_none_is_refused_with_its_field(tmp_path: Path, document: object, problem: str) -> None:
    with pytest.raises(NotAnEngine, match=problem):
        read_engine_config(write(tmp_path, document))
