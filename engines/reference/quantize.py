"""A copy of a checkpoint whose weights were rounded to integers: `python -m engines.reference.quantize --bits 8 OUT`.

In: a checkpoint's directory. Out: another directory that every engine loads, in float32, with the rounded weights. The
loss is that of weight-only quantization; memory and speed stay those of float32.
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engines.reference.checkpoint import Checkpoint, Floats, load_checkpoint
from engines.reference.launch import WEIGHTS

SCALES = ("channel", "tensor")


def round_trip(weight: Floats, bits: int, per: str) -> Floats:
    """Rounds [out, in] to the nearest of 2**bits - 1 evenly spaced values about zero, scaled by the largest weight.

    `per` "channel": a scale for each of `out` rows, as in LLM.int8 and TensorRT-LLM's weight-only kernels (arXiv
    2208.07339, section 2.1); "tensor": one scale for all.
    """
    largest = 2 ** (bits - 1) - 1
    peak = np.abs(weight).max(axis=1 if per == "channel" else None, keepdims=True)
    scale = np.where(peak > 0, peak, 1) / largest
    return np.asarray(np.rint(weight / scale) * scale, np.float32)


def quantize(checkpoint: Checkpoint, bits: int, per: str) -> dict[str, Floats]:
    """Rounds all matrices, the embedding included. Vectors (norms) keep their values, as in every recipe."""
    return {
        name: round_trip(tensor, bits, per) if tensor.ndim == 2 else tensor.astype(np.float32)
        for name, tensor in checkpoint.tensors.items()
    }


def write_copy(source: Path, out: Path, bits: int, per: str) -> None:
    """Writes the copy. Raises OSError if `out` exists or cannot be written, ValueError where load_checkpoint does."""
    tensors = quantize(load_checkpoint(source), bits, per)
    out.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt", "weights": f"int{bits} per {per}"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engines.reference.quantize", description=__doc__)
    parser.add_argument("out", type=Path, help="directory to make")
    parser.add_argument("--bits", type=int, choices=range(2, 9), default=8, help="default: %(default)s")
    parser.add_argument("--per", choices=SCALES, default="channel", help="what shares a scale (default: %(default)s)")
    parser.add_argument("--source", type=Path, default=WEIGHTS, help="the checkpoint (default: the reference weights)")
    options = parser.parse_args()
    try:
        write_copy(options.source, options.out, options.bits, options.per)
    except (OSError, ValueError) as exc:
        sys.exit(f"error: {exc}")
    sys.stdout.write(f"{options.out}: int{options.bits} per {options.per}, stored as float32\n")


if __name__ == "__main__":
    main()
