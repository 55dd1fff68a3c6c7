"""The commands of the compiled-engine flow: convert or quantize a checkpoint to TensorRT-LLM's form, and build.

In: a CompiledRecipe and paths. Out: steps. Options as TensorRT-LLM's programs declare them (contract.yaml).
"""

from dataclasses import dataclass
from pathlib import Path

from engines.recipes.recipe import Calibration, CompiledRecipe, Eagle, Lookahead, Lora, Medusa, Plugins
from engines.recipes.rules import PLAIN
from engines.trtllm.steps import Step


@dataclass(frozen=True, slots=True)
class Paths:
    """`source` is the Hugging Face checkpoint, `converted` is made from it, `examples` hold the programs for that."""

    source: Path
    converted: Path
    engine: Path
    examples: Path


def make_compiled_steps(recipe: CompiledRecipe, paths: Paths) -> tuple[Step, ...]:
    return _convert(recipe, paths), _build(recipe, paths)


def _quantize(recipe: CompiledRecipe, paths: Paths, calibration: Calibration) -> list[str]:
    precision = recipe.precision
    argv = ["python3", str(paths.examples / "quantization/quantize.py")]
    argv += ["--model_dir", str(paths.source), "--output_dir", str(paths.converted)]
    argv += ["--dtype", precision.dtype, "--qformat", "full_prec" if precision.weights in PLAIN else precision.weights]
    if precision.kv_cache != "auto":
        argv += ["--kv_cache_dtype", precision.kv_cache]
    if precision.weights == "int4_awq":
        argv += ["--awq_block_size", str(calibration.awq_block_size)]
    argv += ["--calib_dataset", calibration.dataset, "--calib_size", str(calibration.samples)]
    argv += ["--batch_size", str(calibration.batch_size)]
    argv += ["--calib_max_seq_length", str(calibration.max_seq_length)]
    return [*argv, *_parallel(recipe), *_quantized_heads(recipe)]


def _convert(recipe: CompiledRecipe, paths: Paths) -> Step:
    calibration = recipe.precision.calibration
    if calibration is not None:
        precision = f"{recipe.precision.weights} weights, {recipe.precision.kv_cache} KV cache"
        return Step(f"quantize the checkpoint: {precision}", tuple(_quantize(recipe, paths, calibration)))
    argv = ["python3", str(paths.examples / _converter(recipe) / "convert_checkpoint.py")]
    argv += ["--model_dir", str(paths.source), "--output_dir", str(paths.converted)]
    argv += ["--dtype", recipe.precision.dtype, *_parallel(recipe), *_plain_heads(recipe)]
    return Step("convert the checkpoint", tuple(argv))


def _converter(recipe: CompiledRecipe) -> str:
    if isinstance(recipe.speculative, Eagle | Medusa):
        return recipe.speculative.kind
    return f"models/core/{recipe.model.family}"


def _parallel(recipe: CompiledRecipe) -> list[str]:
    return ["--tp_size", str(recipe.parallel.tp), "--pp_size", str(recipe.parallel.pp)]


def _quantized_heads(recipe: CompiledRecipe) -> list[str]:
    match recipe.speculative:
        case Medusa() as medusa:
            return [*_medusa_heads(medusa), "--max_draft_len", str(medusa.max_draft_len)]
    return []


def _plain_heads(recipe: CompiledRecipe) -> list[str]:
    match recipe.speculative:
        case Medusa() as medusa:
            return [*_medusa_heads(medusa), "--max_medusa_token_len", str(medusa.max_draft_len)]
        case Eagle() as eagle:
            argv = ["--eagle_model_dir", eagle.draft_model, "--max_draft_len", str(eagle.max_draft_len)]
            argv += ["--num_eagle_layers", str(eagle.layers)]
            return [*argv, "--max_non_leaves_per_layer", str(eagle.max_non_leaves_per_layer)]
    return []


def _medusa_heads(medusa: Medusa) -> list[str]:
    return ["--medusa_model_dir", medusa.draft_model, "--num_medusa_heads", str(medusa.heads)]


def _build(recipe: CompiledRecipe, paths: Paths) -> Step:
    limits = recipe.limits
    argv = ["trtllm-build", "--checkpoint_dir", str(paths.converted), "--output_dir", str(paths.engine)]
    argv += ["--max_batch_size", str(limits.max_batch_size), "--max_num_tokens", str(limits.max_num_tokens)]
    argv += ["--max_seq_len", str(limits.max_seq_len), "--max_beam_width", str(limits.max_beam_width)]
    argv += ["--kv_cache_type", "paged" if recipe.kv_cache.paged else "continuous"]
    argv += ["--tokens_per_block", str(recipe.kv_cache.tokens_per_block)]
    argv += ["--remove_input_padding", "enable", "--context_fmha", "enable"]
    argv += [*_plugins(recipe.plugins), *_speculation(recipe), *_lora(recipe.lora)]
    argv += ["--workers", str(recipe.parallel.world_size)]
    argv += ["--output_timing_cache", str(paths.converted / "model.cache")]  # its default is the working directory
    return Step("build the engine", tuple(argv))


def _plugins(plugins: Plugins) -> list[str]:
    return [word for name, value in plugins if value is not None for word in (f"--{name}", str(value))]


def _speculation(recipe: CompiledRecipe) -> list[str]:
    speculative = recipe.speculative
    if speculative is None:
        return []
    mode = "lookahead_decoding" if isinstance(speculative, Lookahead) else speculative.kind
    return ["--speculative_decoding_mode", mode, "--max_draft_len", str(speculative.max_draft_len)]


def _lora(lora: Lora | None) -> list[str]:
    if lora is None:
        return []
    argv = ["--lora_plugin", "auto", "--max_lora_rank", str(lora.max_rank)]
    argv += ["--lora_dir", *lora.directories] if lora.directories else []
    return [*argv, "--lora_target_modules", *lora.target_modules] if lora.target_modules else argv
