"""Reading config.json and safetensors as Hugging Face writes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from engines.reference.checkpoint import load_checkpoint, parse_config, read_tensors

MINIMAL = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
}


def test_values_that_follow_from_others_may_be_absent() -> None:
    config = parse_config(MINIMAL)
    assert (config.kv_heads, config.head_dim, config.group) == (2, 4, 1)
    assert config.rope_theta == 10000
    assert not config.has_tied_embeddings


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_rope_theta_is_read_from_old_and_new_configs(changes: dict[str, object]) -> None:
    assert parse_config(MINIMAL | changes).rope_theta == 5e5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "qwen3"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_config(MINIMAL | changes)


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    body = bytes.fromhex("803f 00c0 0000 c27f")  # 1, -2, 0, nan; little-endian
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    np.testing.assert_array_equal(read_tensors(tmp_path / "x.safetensors")["a"], [[1, -2], [0, np.nan]])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_the_safetensors_package_writes_is_read_back(tmp_path: Path, dtype: type) -> None:
    written: dict[str, NDArray[Any]] = {  # of either precision
        "a": np.arange(6, dtype=dtype).reshape(2, 3),
        "b": np.array([0.5], dtype),
    }
    save_file(written, tmp_path / "x.safetensors", metadata={"format": "np"})
    read = read_tensors(tmp_path / "x.safetensors")
    assert read.keys() == written.keys()
    for name, values in read.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, written[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_word_embeddings": False}, "no tensor lm_head.weight"),
        ({"num_hidden_layers": 5}, "no tensor model.layers.4"),
        ({"intermediate_size": 641}, "gate_proj.weight is"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_named(
    make_checkpoint: Callable[..., Path], changes: dict[str, object], message: str
) -> None:
    directory = make_checkpoint()
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        load_checkpoint(directory)
