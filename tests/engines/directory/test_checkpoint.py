"""The content of a checkpoint and the needs of recipes, as tables over small folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.directory.checkpoint import (
    TEMPLATE,
    TOKENIZER,
    NotACheckpoint,
    find_misfits,
    hash_present,
    hash_weights,
    read_checkpoint,
)
from engines.directory.manifest import hash_file
from engines.recipes.recipe import Recipe
from tests.engines.recipes.changed import change

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}
BF16, TORCH, NVFP4 = "llama-3.1-8b-bf16-tp1", "llama-3.1-8b-torch-fp8-tp2", "llama-3.1-8b-torch-nvfp4-tp1"


def write_checkpoint(folder: Path, changes: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return folder


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_scaling": {"factor": 8.0, "rope_type": "llama3"}}, 131072),  # in max_position_embeddings already
        ({"rope_scaling": {"factor": 4.0, "type": "linear"}}, 524288),
        ({"rope_scaling": None}, 131072),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 131072),
    ],
)
def test_context_is_as_long_as_tensorrt_llm_takes_it(tmp_path: Path, rope: dict[str, Any], length: int) -> None:
    assert read_checkpoint(write_checkpoint(tmp_path, rope)).context_length == length


@pytest.mark.parametrize(
    ("written", "ids"), [(2, (2,)), ([128001, 128008, 128009], (128001, 128008, 128009)), (None, ())]
)
def test_ids_that_end_an_answer_are_one_or_several(tmp_path: Path, written: object, ids: tuple[int, ...]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": written}))
    assert read_checkpoint(write_checkpoint(tmp_path, {})).eos_ids == ids


AWQ, FP8 = {"quant_method": "awq"}, {"quant_algo": "FP8", "quant_method": "modelopt"}
QUANTIZES = "precision.calibration quantizes them here"
STAGES = change(BF16, parallel={"pp": 2}, gpus={"count": 2})
MISFITS: list[tuple[dict[str, Any], Recipe, str]] = [
    ({"num_attention_heads": 33}, change(TORCH), "parallel.tp: 33 attention heads do not divide by 2"),
    ({"num_key_value_heads": 3}, change(TORCH), "parallel.tp: 3 key and value heads cannot be shared out to 2"),
    ({"num_hidden_layers": 31}, STAGES, "parallel.pp: 31 layers do not divide by 2"),
    (
        *({"architectures": ["Qwen2ForCausalLM"]}, change("llama-3.1-8b-fp8-tp2")),
        "plugins.reduce_fusion: the release turns it off for Qwen2ForCausalLM",
    ),
    (
        *({"max_position_embeddings": 4096}, change(BF16)),
        "limits.max_seq_len: 8192 is beyond the 4096 positions that the checkpoint was trained for",
    ),
    (
        *({"quantization_config": AWQ}, change(BF16)),
        "precision.weights: the checkpoint is quantized already (awq), this begins with a plain one",
    ),
    ({}, change(NVFP4), f"precision.weights: nvfp4, but the checkpoint's are not quantized; {QUANTIZES}"),
    (
        *({"quantization_config": FP8}, change(NVFP4)),
        f"precision.weights: nvfp4, but the checkpoint's are FP8; {QUANTIZES}",
    ),
]


@pytest.mark.parametrize(("config", "recipe", "problem"), MISFITS)
def test_checkpoint_that_cannot_give_what_is_asked_is_refused(
    tmp_path: Path, config: dict[str, Any], recipe: Recipe, problem: str
) -> None:
    assert list(find_misfits(recipe, read_checkpoint(write_checkpoint(tmp_path, config)))) == [problem]


def test_quantization_is_read_from_the_file_that_model_optimizer_writes(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, {}))
    assert list(find_misfits(change(NVFP4), checkpoint)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "No such file"), ("{", "the file: Invalid JSON"), ('{"architectures": []}', "architectures: ")],
)
def test_folder_that_is_no_checkpoint_is_refused_with_the_lack(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(NotACheckpoint, match=problem):
        read_checkpoint(tmp_path)


def test_hashes_follow_content_and_not_place(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        write_checkpoint(folder, {})
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "tokenizer.json").write_text("{}")
    assert hash_weights(one, hash_file) == hash_weights(other, hash_file)
    assert hash_present(one, TEMPLATE, hash_file) is None
    (other / "model.safetensors").write_bytes(b"other weights")
    assert hash_weights(one, hash_file) != hash_weights(other, hash_file)
    assert hash_present(one, TOKENIZER, hash_file) == hash_present(other, TOKENIZER, hash_file)
