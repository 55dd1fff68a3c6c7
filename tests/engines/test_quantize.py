"""Integer round trips of weights: how many values are left, how far each is moved, and a checkpoint that loads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engines.reference.checkpoint import load_checkpoint
from engines.reference.quantize import quantize, round_trip, write_copy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def weight() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.standard_normal((6, 500), np.float32) * np.array([[0.01], [0.1], [1], [1], [10], [0]], np.float32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("per", ["channel", "tensor"])
def test_a_weight_moves_by_no_more_than_half_a_step_of_its_scale(weight: np.ndarray, bits: int, per: str) -> None:
    peak = np.abs(weight).max(axis=1 if per == "channel" else None, keepdims=True)
    step = peak / (2 ** (bits - 1) - 1)
    moved = np.abs(round_trip(weight, bits, per) - weight)
    assert (moved <= step / 2 * 1.0001 + 1e-9).all()
    assert moved.max() > step.max() / 4


def test_a_copy_loads_with_its_norms_as_they_were(checkpoint_directory: Path, tmp_path: Path) -> None:
    write_copy(checkpoint_directory, tmp_path / "copy", 8, "tensor")
    before, after = load_checkpoint(checkpoint_directory), load_checkpoint(tmp_path / "copy")
    assert after.config == before.config
    for name, tensor in quantize(before, 8, "tensor").items():
        np.testing.assert_array_equal(after.tensors[name], tensor)
        assert np.array_equal(tensor, before.tensors[name]) == (tensor.ndim == 1)


def test_the_command_makes_a_copy_once_and_refuses_to_write_over_it(checkpoint_directory: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "copy")
    command = [sys.executable, "-m", "engines.reference.quantize", "--source", str(checkpoint_directory), out]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False) for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, f"{out}: int8 per channel, stored as float32\n")
    assert (second.returncode, "exists" in second.stderr) == (1, True)
