"""Random checkpoints in the format of the trained one."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engines.reference.checkpoint import Checkpoint, expected_shapes, load_checkpoint, parse_config
from engines.reference.launch import WEIGHTS

REFERENCE_CONFIG: dict[str, object] = json.loads((WEIGHTS / "config.json").read_text())
TINY: dict[str, object] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}

MakeCheckpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """Writes a random checkpoint of the reference shape with changes to its config.json; returns its directory."""

    def make(**changes: object) -> Path:
        directory = tmp_path_factory.mktemp("checkpoint")
        config = REFERENCE_CONFIG | changes
        (directory / "config.json").write_text(json.dumps(config))
        rng = np.random.default_rng(7)
        shapes = expected_shapes(parse_config(config))
        write_safetensors(
            directory / "model.safetensors", {name: weights(rng, name, shape) for name, shape in shapes.items()}
        )
        return directory

    return make


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Scaled so that logits spread as a trained model's do: the two best are then rarely within rounding."""
    noise = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return 1 + 0.1 * noise
    return (0.25 if "embed" in name or "lm_head" in name else shape[1] ** -0.5) * noise


def write_safetensors(file: Path, tensors: dict[str, np.ndarray]) -> None:
    """As bfloat16, which is the upper half of a float32."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        data = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2").tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": offsets}
        body += data
    head = json.dumps(header).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + body)


@pytest.fixture(scope="session")
def checkpoint_directory(make_checkpoint: MakeCheckpoint) -> Path:
    """Of the reference shape."""
    return make_checkpoint()


@pytest.fixture(scope="session")
def checkpoint(checkpoint_directory: Path) -> Checkpoint:
    return load_checkpoint(checkpoint_directory)


@pytest.fixture(scope="session")
def tiny(make_checkpoint: MakeCheckpoint) -> Checkpoint:
    """Small enough for tests that run thousands of steps: vocabulary 128, context 64."""
    return load_checkpoint(make_checkpoint(**TINY))
