"""A model's shape and weights, which decide what all-reduces cost it, from config.json and the files beside it.

In: a path. Out: a Model, or ValueError that names the field. Knows no GPU.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIG = "config.json"
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
GATED = ("silu", "swish")  # such MLPs have three matrices; config.json does not show how many others have
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
BITS = "give them with --weight-bits"
GIVE = "give what one step reads with --weights-gb"

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Weights:
    """`item_bytes`: the size of one weight. `read_bytes`: what one step reads, on all GPUs together. `held_bytes`: what
    lies in memory, None where only those of a step were given. `source`: where these numbers come from.
    """

    item_bytes: float
    read_bytes: float
    held_bytes: float | None
    source: str

    @property
    def count(self) -> float:
        """The number of weights that one token is multiplied by."""
        return self.read_bytes / self.item_bytes


@dataclass(frozen=True, slots=True)
class Model:
    """A model's shape and weights. `item_bytes`: the size of one activation."""

    name: str
    hidden: int
    layers: int
    heads: int
    item_bytes: int
    weights: Weights


@dataclass(frozen=True, slots=True)
class _Config:
    """Fields of one config.json, read by name. ValueError names the file and the field."""

    path: Path
    fields: Fields

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.path}: {name} is {_show(value)}, a whole number was expected")
        return value

    def word(self, name: str) -> str:
        return str(self.fields.get(name) or "")


def read_model(path: Path, weights_gb: float | None = None, weight_bits: int | None = None) -> Model:
    """Reads a directory or its config.json. Raises ValueError for a file that is no configuration, or lacks a field."""
    file = path / CONFIG if path.is_dir() else path
    config = _read(file)
    return Model(
        name=file.absolute().parent.name,
        hidden=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        heads=config.whole("num_attention_heads"),
        item_bytes=_find_item_bytes(config),
        weights=_weigh(config, weight_bits) if weights_gb is None else _take(config, weights_gb, weight_bits),
    )


def _read(file: Path) -> _Config:
    try:
        found = json.loads(file.read_bytes())
    except OSError as exc:
        raise ValueError(f"cannot read {file}: {exc.strerror}") from exc
    except ValueError as exc:
        raise ValueError(f"{file} is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ValueError(f"{file} is no object")  # noqa: TRY004 - a file's fault, no caller's
    # Models of images or sound keep the language model's fields one level down.
    inner = found.get("text_config")
    return _Config(file, found | inner if isinstance(inner, dict) else found)


def _find_item_bytes(config: _Config) -> int:
    name = config.word("dtype") or config.word("torch_dtype") or "bfloat16"
    if name not in ITEM_BYTES:
        raise ValueError(f"{config.path}: dtype is {name}, one of {', '.join(ITEM_BYTES)} was expected")
    return ITEM_BYTES[name]


def _find_weight_bytes(config: _Config) -> float:
    quantized = config.fields.get("quantization_config")
    if not isinstance(quantized, dict):
        return _find_item_bytes(config)
    bits = quantized.get("bits", quantized.get("weight_bits"))
    if isinstance(bits, int) and not isinstance(bits, bool) and bits > 0:
        return bits / 8
    method = str(quantized.get("quant_method"))
    if "fp8" in method or "FP8" in str(quantized.get("quant_algo")):
        return 1
    raise ValueError(f"{config.path}: quantization_config ({method}) does not give a weight's bits: {BITS}")


def _take(config: _Config, weights_gb: float, bits: int | None) -> Weights:
    return Weights(bits / 8 if bits else _find_weight_bytes(config), weights_gb * 1e9, None, "as given")


def _weigh(config: _Config, bits: int | None) -> Weights:
    """Weighs by the files' size, else by the fields of config.json. A step looks an input embedding up and does not
    read it. `bits`: those of an engine that quantizes the model as it loads it, whose weights are not the files' own.
    """
    expert = next((name for name in EXPERTS if config.fields.get(name)), None)
    if expert is not None:
        raise ValueError(f"{config.path}: {expert}: which experts a step reads depends on its tokens: {GIVE}")
    item = bits / 8 if bits else _find_weight_bytes(config)
    table = config.whole("vocab_size") * config.whole("hidden_size") * _find_item_bytes(config)
    embedding = 0 if config.fields.get("tie_word_embeddings") else table
    files = sum(file.stat().st_size for file in config.path.parent.glob("*.safetensors"))
    if files and not bits:
        return Weights(item, files - embedding, files, "size of its *.safetensors")
    read = _count_layer_weights(config) * item + table
    return Weights(item, read, read + embedding, f"counted from {CONFIG}")


def _count_layer_weights(config: _Config) -> int:
    """Counts a Llama-like decoder's weights: query, key, value and output projections and a gated MLP in each layer."""
    if config.word("hidden_act") not in GATED and "gelu" not in config.word("hidden_activation"):
        raise ValueError(f"{config.path}: hidden_act is {_show(config.fields.get('hidden_act'))}, no gated MLP: {GIVE}")
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim, groups = config.whole("head_dim", hidden // heads), config.whole("num_key_value_heads", heads)
    attention = hidden * head_dim * (2 * heads + 2 * groups)
    return config.whole("num_hidden_layers") * (attention + 3 * hidden * config.whole("intermediate_size"))


def _show(value: object) -> str:
    return "missing" if value is None else repr(value)
