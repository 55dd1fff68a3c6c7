"""The commands of the PyTorch flow: a quantized Hugging Face checkpoint where one is to be made, and how to serve it.

In: a TorchRecipe and paths. Out: steps, and the command line of trtllm-serve. The YAML beside them is llm_args.py's.
Model Optimizer quantizes, as NVIDIA documents it: TensorRT-LLM docs/source/features/quantization.md@09d4c79,
Model-Optimizer examples/llm_ptq/README.md@df0882a.
"""

from pathlib import Path

from engines.recipes.recipe import Calibration, TorchRecipe
from engines.trtllm.compiled import Paths
from engines.trtllm.steps import Step

LLM_ARGS = "llm_args.yaml"
CHECKPOINT = "checkpoint"  # the folder beside it, where the weights are quantized here
HF_PTQ = "llm_ptq/hf_ptq.py"


def make_torch_steps(recipe: TorchRecipe, paths: Paths) -> tuple[Step, ...]:
    calibration = recipe.precision.calibration
    if calibration is None:
        return ()
    purpose = f"quantize the checkpoint: {recipe.precision.weights} weights, Hugging Face's form"
    return (Step(purpose, tuple(_quantize(recipe, paths, calibration))),)


def _quantize(recipe: TorchRecipe, paths: Paths, calibration: Calibration) -> list[str]:
    """Makes the command. Formats have a recipe's names; tensors that are not quantized keep the checkpoint's type."""
    precision = recipe.precision
    argv = ["python3", str(paths.examples / HF_PTQ)]
    argv += ["--pyt_ckpt_path", str(paths.source), "--export_path", str(paths.converted)]
    # Its default is an FP8 cache.
    argv += ["--qformat", precision.weights, "--kv_cache_qformat", precision.kv_cache.replace("auto", "none")]
    if precision.weights == "int4_awq":
        argv += ["--awq_block_size", str(calibration.awq_block_size)]
    argv += ["--dataset", calibration.dataset, "--calib_size", str(calibration.samples)]
    return [*argv, "--batch_size", str(calibration.batch_size)]


def served_checkpoint(recipe: TorchRecipe, paths: Paths) -> Path:
    return paths.source if recipe.precision.calibration is None else paths.converted


def serve_command(recipe: TorchRecipe, paths: Paths) -> tuple[str, ...]:
    """Makes the command. Its flags and the file agree, so it does not matter which of them a release prefers.

    trtllm-serve listens on localhost by default.
    """
    limits = recipe.limits
    return (
        *("trtllm-serve", str(served_checkpoint(recipe, paths)), "--tokenizer", str(paths.source)),
        *("--backend", "pytorch", "--host", "0.0.0.0", "--port", "8000"),  # its container publishes the port
        *("--tp_size", str(recipe.parallel.tp), "--pp_size", str(recipe.parallel.pp)),
        *("--max_batch_size", str(limits.max_batch_size), "--max_num_tokens", str(limits.max_num_tokens)),
        *("--max_seq_len", str(limits.max_seq_len), "--max_beam_width", str(limits.max_beam_width)),
        *("--config", str(paths.engine / LLM_ARGS)),
    )
