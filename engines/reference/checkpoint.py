"""A Llama checkpoint as Hugging Face writes it: config.json and *.safetensors in one directory.

In: the directory. Out: the model's shape, and float32 arrays by their Hugging Face names. Knows no arithmetic.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a LlamaForCausalLM; names shortened from config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    has_tied_embeddings: bool

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Checkpoint:
    config: LlamaConfig
    tensors: Mapping[str, Floats]


def load_checkpoint(directory: Path) -> Checkpoint:
    """Loads a directory. Raises ValueError for a model that is no plain Llama, or has missing or misshapen tensors."""
    config = parse_config(json.loads((directory / "config.json").read_text()))
    tensors: dict[str, Floats] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= read_tensors(file)
    for name, shape in expected_shapes(config).items():
        if name not in tensors:
            raise ValueError(f"{directory}: no tensor {name}")
        if tensors[name].shape != shape:
            raise ValueError(f"{directory}: {name} is {tensors[name].shape}, config.json gives {shape}")
    return Checkpoint(config, tensors)


def parse_config(raw: Mapping[str, Any]) -> LlamaConfig:  # JSON: any values
    _refuse_unsupported(raw)
    heads = raw["num_attention_heads"]
    # Hugging Face writes None where the value follows from others.
    return LlamaConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        context_length=raw["max_position_embeddings"],
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(_rope(raw).get("rope_theta", raw.get("rope_theta", 10000.0))),
        has_tied_embeddings=raw.get("tie_word_embeddings", False),
    )


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:  # JSON: any values
    """transformers 5 writes `rope_parameters`, with theta inside; earlier ones `rope_scaling`, with theta beside it."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:  # JSON: any values
    rope = _rope(raw)
    found: dict[str, tuple[object, object]] = {
        "model_type": (raw.get("model_type"), "llama"),
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "attention_bias": (raw.get("attention_bias", False), False),
        "mlp_bias": (raw.get("mlp_bias", False), False),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    for name, (value, supported) in found.items():
        if value != supported:
            raise ValueError(f"config.json: {name} is {value!r}; this engine runs {supported!r} only")


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.has_tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.layers):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def read_tensors(file: Path) -> dict[str, Floats]:
    """Reads length, JSON header and bytes, without the safetensors package, which refuses bfloat16 for NumPy."""
    content = memoryview(file.read_bytes())
    body = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(bytes(content[8:body]))  # JSON: any values
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = _floats(entry["dtype"], content[body + begin : body + end]).reshape(entry["shape"])
    return tensors


def _floats(dtype: str, data: memoryview) -> Floats:
    if dtype == "BF16":
        # NumPy has no bfloat16; it is the upper half of a float32.
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in {"F32", "F16"}:
        return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)
    raise ValueError(f"safetensors: dtype {dtype} is not supported; store BF16, F16 or F32")
