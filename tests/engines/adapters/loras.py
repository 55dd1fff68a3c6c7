"""A LoRA adapter of the reference weights in PEFT's form, and the same weights with it merged into them."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engines.reference.checkpoint import Floats, load_checkpoint
from tests.engines.wires.servers import WEIGHTS

RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "v_proj")


def write_lora(folder: Path, merged: Path) -> None:
    """Random, and large enough that answers change."""
    checkpoint = load_checkpoint(WEIGHTS)
    tensors: dict[str, Floats] = dict(checkpoint.tensors)
    lora: dict[str, Floats] = {}
    numbers = np.random.default_rng(5)
    for layer in range(checkpoint.config.layers):
        for target in TARGETS:
            name = f"model.layers.{layer}.self_attn.{target}"
            weight = tensors[f"{name}.weight"]
            down = numbers.normal(0, 0.1, (RANK, weight.shape[1])).astype(np.float32)
            up = numbers.normal(0, 0.1, (weight.shape[0], RANK)).astype(np.float32)
            lora |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
            tensors[f"{name}.weight"] = weight + ALPHA / RANK * (up @ down)
    folder.mkdir(parents=True)
    save_file(lora, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(configuration()))
    shutil.copytree(WEIGHTS, merged, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, merged / "model.safetensors")


def configuration() -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
