"""The commands of the PyTorch flow: a quantized Hugging Face checkpoint where one is to be made, and how to serve it.

In: a TorchRecipe and paths. Out: steps, and the command line of trtllm-serve. The YAML beside them is llm_args.py's.
"""

from pathlib import Path

from engines.recipes.recipe import TorchRecipe
from engines.trtllm.compiled import Paths, quantize
from engines.trtllm.steps import Step

LLM_ARGS = "llm_args.yaml"
CHECKPOINT = "checkpoint"  # the folder beside it, where the weights are quantized here


def make_torch_steps(recipe: TorchRecipe, paths: Paths) -> tuple[Step, ...]:
    calibration = recipe.precision.calibration
    if calibration is None:
        return ()
    argv = (*quantize(recipe, paths, calibration), "--export_format", "hf")
    return (Step(f"quantize the checkpoint: {recipe.precision.weights} weights, Hugging Face's form", argv),)


def served_checkpoint(recipe: TorchRecipe, paths: Paths) -> Path:
    return paths.source if recipe.precision.calibration is None else paths.converted


def serve_command(recipe: TorchRecipe, paths: Paths) -> tuple[str, ...]:
    """Flags and file say the same, so it does not matter which of them a release lets win.

    trtllm-serve listens on localhost unless told otherwise.
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
