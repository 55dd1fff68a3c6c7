"""A model from config.json and the files beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.fabric.model import Weights, read_model
from tests.engines.fabric.gpus import LLAMA_8B

BF16 = LLAMA_8B | {"torch_dtype": "bfloat16"}
LAYERS, TABLE = 6_979_321_856, 525_336_576  # Llama-3.1-8B: 8.03e9 parameters with two tables


def write(folder: Path, **changes: Any) -> Path:  # Any: JSON
    fields = {name: value for name, value in (BF16 | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_weights_are_counted_from_the_configuration(tmp_path: Path) -> None:
    model = read_model(write(tmp_path))
    assert (model.hidden, model.layers, model.heads, model.item_bytes) == (4096, 32, 32, 2)
    read, held = 2 * (LAYERS + TABLE), 2 * (LAYERS + 2 * TABLE)
    assert model.weights == Weights(2, read, held, "counted from config.json")
    assert model.weights.count == LAYERS + TABLE


@pytest.mark.parametrize(
    ("quantization", "item_bytes"),
    [
        ({"quant_method": "fp8"}, 1),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1),
        ({"quant_method": "awq", "bits": 4}, 0.5),
    ],
)
def test_quantized_layers_weigh_less_and_the_head_does_not(
    tmp_path: Path, quantization: dict[str, object], item_bytes: float
) -> None:
    weights = read_model(write(tmp_path, quantization_config=quantization)).weights
    assert weights.item_bytes == item_bytes
    assert weights.read_bytes == LAYERS * item_bytes + 2 * TABLE


def test_sizes_of_files_go_before_the_configuration(tmp_path: Path) -> None:
    small = write(tmp_path, vocab_size=10, hidden_size=64)
    for name, size in (("model-1.safetensors", 5000), ("model-2.safetensors", 3000)):
        (small / name).write_bytes(bytes(size))
    weights = read_model(small / "config.json").weights
    assert (weights.held_bytes, weights.read_bytes) == (8000, 8000 - 10 * 64 * 2)


def test_an_engine_that_quantizes_reads_less_than_the_files_hold(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").write_bytes(bytes(5000))
    weights = read_model(tmp_path, weight_bits=8).weights
    assert weights == Weights(1, LAYERS + 2 * TABLE, LAYERS + 4 * TABLE, "counted from config.json")
    assert read_model(tmp_path, weights_gb=8, weight_bits=8).weights.count == 8e9


def test_the_language_model_of_one_that_sees_lies_one_level_down(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": BF16, "hidden_size": 1}))
    assert read_model(tmp_path).hidden == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing, a whole number was expected"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32', a whole number was expected"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, a whole number was expected"),
        ({"torch_dtype": "int3"}, "dtype is int3, one of float32, float16, bfloat16 was expected"),
        ({"num_local_experts": 8}, "num_local_experts: which experts a step reads .* --weights-gb"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', no gated MLP: .* --weights-gb"),
        (
            {"quantization_config": {"quant_method": "mystery"}},
            "quantization_config .mystery. does not give a weight's bits: .* --weight-bits",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_model(write(tmp_path, **changes))


@pytest.mark.parametrize(("text", "message"), [("{", "is no JSON"), ("[]", "is no object")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path)
