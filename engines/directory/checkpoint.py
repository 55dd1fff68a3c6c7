"""A Hugging Face checkpoint: its shape and precision, whether it fits a recipe, and hashes that identify it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, TypeAdapter

from engines.directory.json_file import parse_json_file
from engines.directory.manifest import Hash
from engines.recipes.recipe import CompiledRecipe, Recipe
from engines.trtllm.release import WEIGHT_ALGORITHMS

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"  # NVIDIA's Model Optimizer writes it beside what it exports
WEIGHTS = ("*.safetensors", "*.bin", "*.pth")
TOKENIZER = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")
TEMPLATE = ("chat_template.jinja", "tokenizer_config.json")

File = TypeVar("File", bound=BaseModel)

FUSED = frozenset({"LlamaForCausalLM", "Gemma2ForCausalLM"})  # build() of tensorrt_llm/builder.py: and Medusa's


class NotACheckpoint(Exception):
    """The folder holds no Hugging Face checkpoint; the message gives the reason."""


class _Rope(BaseModel):
    factor: float = 1.0
    rope_type: str = Field(default="default")
    type: str | None = None


class _Quantized(BaseModel):
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    quant_method: str | None = None


class _ModelFile(BaseModel):
    architectures: list[str] = Field(min_length=1)
    num_attention_heads: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    max_position_embeddings: int = Field(ge=1)
    num_key_value_heads: int | None = None
    rope_scaling: _Rope | None = Field(None, validation_alias=AliasChoices("rope_scaling", "rope_parameters"))
    quantization_config: _Quantized | None = None


class _QuantizationFile(BaseModel):
    quantization: _Quantized


def _list_ids(value: object) -> object:
    return [value] if isinstance(value, int) else value or []


class _GenerationFile(BaseModel):
    eos_token_id: Annotated[list[int], BeforeValidator(_list_ids)] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`context_length` is as TensorRT-LLM computes it; `quantization` is None where the weights are plain."""

    path: Path
    architecture: str
    heads: int
    kv_heads: int
    layers: int
    context_length: int
    quantization: str | None
    eos_ids: tuple[int, ...]


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint's shape and precision. Raises NotACheckpoint."""
    model = _parse(path / CONFIG, _ModelFile)
    generation = path / "generation_config.json"
    return Checkpoint(
        path=path,
        architecture=model.architectures[0],
        heads=model.num_attention_heads,
        kv_heads=model.num_key_value_heads or model.num_attention_heads,
        layers=model.num_hidden_layers,
        context_length=_context_length(model),
        quantization=_read_quantization(path, model),
        eos_ids=tuple(_parse(generation, _GenerationFile).eos_token_id) if generation.is_file() else (),
    )


def find_misfits(recipe: Recipe, checkpoint: Checkpoint) -> Iterator[str]:
    """The needs of the recipe that this checkpoint cannot meet, one `field: problem` line each."""
    yield from _find_split_problems(recipe, checkpoint)
    wanted, longest = recipe.limits.max_seq_len, checkpoint.context_length
    if wanted > longest:
        yield f"limits.max_seq_len: {wanted} is beyond the {longest} positions that the checkpoint was trained for"
    yield from _find_quantization_problems(recipe, checkpoint)
    fuses = isinstance(recipe, CompiledRecipe) and recipe.plugins.reduce_fusion == "enable"
    if fuses and checkpoint.architecture not in FUSED:
        yield f"plugins.reduce_fusion: the release turns it off for {checkpoint.architecture}"


def hash_weights(path: Path, hash_one: Hash) -> str:
    """SHA-256 over the names and contents of configuration and weights."""
    names = sorted({file for pattern in (CONFIG, QUANTIZATION, *WEIGHTS) for file in path.glob(pattern)})
    return _hash_lines(f"{hash_one(file)}  {file.name}" for file in names)


def hash_present(path: Path, names: tuple[str, ...], hash_one: Hash) -> str | None:
    """Returns the SHA-256 over those files of TOKENIZER or TEMPLATE that exist; None if none does."""
    lines = [f"{hash_one(path / name)}  {name}" for name in names if (path / name).is_file()]
    return _hash_lines(iter(lines)) if lines else None


def _hash_lines(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _parse(path: Path, kind: type[File]) -> File:
    return parse_json_file(path, TypeAdapter(kind), NotACheckpoint)


def _context_length(model: _ModelFile) -> int:
    """max_position_embeddings times the rope factor, which the llama3 kind already includes."""
    rope = model.rope_scaling
    if rope is None or "llama3" in {rope.rope_type, rope.type}:
        return model.max_position_embeddings
    return int(model.max_position_embeddings * rope.factor)


def read_algorithms(path: Path) -> tuple[str | None, str | None]:
    """Reads weights' and KV cache's algorithms from Model Optimizer's export of a checkpoint. Raises NotACheckpoint."""
    quantized = _parse(path / QUANTIZATION, _QuantizationFile).quantization
    return quantized.quant_algo, quantized.kv_cache_quant_algo


def _read_quantization(path: Path, model: _ModelFile) -> str | None:
    if (path / QUANTIZATION).is_file():
        return _parse(path / QUANTIZATION, _QuantizationFile).quantization.quant_algo
    quantized = model.quantization_config
    return None if quantized is None else quantized.quant_algo or quantized.quant_method


def _find_split_problems(recipe: Recipe, checkpoint: Checkpoint) -> Iterator[str]:
    tp, pp = recipe.parallel.tp, recipe.parallel.pp
    if checkpoint.heads % tp:
        yield f"parallel.tp: {checkpoint.heads} attention heads do not divide by {tp}"
    elif checkpoint.kv_heads % tp and tp % checkpoint.kv_heads:
        yield f"parallel.tp: {checkpoint.kv_heads} key and value heads cannot be shared out to {tp}"
    if checkpoint.layers % pp:
        yield f"parallel.pp: {checkpoint.layers} layers do not divide by {pp}"


def _find_quantization_problems(recipe: Recipe, checkpoint: Checkpoint) -> Iterator[str]:
    weights, is_quantized_here = recipe.precision.weights, recipe.precision.calibration is not None
    found, expected = checkpoint.quantization, WEIGHT_ALGORITHMS.get(weights)
    if isinstance(recipe, CompiledRecipe) or is_quantized_here:
        if found is not None:
            yield f"precision.weights: the checkpoint is quantized already ({found}), this begins with a plain one"
    elif (found or "").upper() != (expected or ""):
        held = f"are {found}" if found else "are not quantized"
        yield f"precision.weights: {weights}, but the checkpoint's {held}; precision.calibration quantizes them here"
