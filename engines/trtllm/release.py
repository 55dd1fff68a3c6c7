"""The pinned release, TensorRT-LLM 1.2.1: its image, the Model Optimizer beside it, its names, the GPUs it knows."""

from collections.abc import Mapping
from typing import Final

from engines.recipes.recipe import Architecture, CacheDType, Weights

# The last Triton image with the C++ backend, by NVIDIA's compatibility matrix.
IMAGE: Final = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
EXAMPLES: Final = "/app/examples"  # where the image keeps the release's examples
# No image has these: they are cloned at the version that TensorRT-LLM's requirements.txt (000867d) asks for.
OPTIMIZER: Final = "https://github.com/NVIDIA/Model-Optimizer.git"
OPTIMIZER_TAG: Final = "0.37.0"
OPTIMIZER_EXAMPLES: Final = "/opt/Model-Optimizer/examples"

CAPABILITIES: Final[Mapping[Architecture, tuple[str, ...]]] = {
    "ampere": ("8.0", "8.6"),
    "ada": ("8.9",),
    "hopper": ("9.0",),
    "blackwell": ("10.0", "10.3", "12.0"),
}
# QuantAlgo, as quantize.py and hf_ptq.py write it; SmoothQuant's goes on with the granularity (W8A8_SQ_PER_CHANNEL).
WEIGHT_ALGORITHMS: Final[Mapping[Weights, str]] = {
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ",
    "int4_awq": "W4A16_AWQ",
    "nvfp4": "NVFP4",
}
CACHE_ALGORITHMS: Final[Mapping[CacheDType, str]] = {"fp8": "FP8", "int8": "INT8"}


def name_architecture(capability: str) -> str:
    """The architecture of a compute capability; the number itself where none is known."""
    return next((name for name, known in CAPABILITIES.items() if capability in known), capability)


def name_weights(algorithm: str | None, dtype: str) -> str:
    """A recipe's word for the weights of an engine: those of `dtype` where nothing was quantized."""
    if algorithm is None:
        return dtype
    return next((name for name, known in WEIGHT_ALGORITHMS.items() if algorithm.startswith(known)), algorithm)


def name_cache(algorithm: str | None) -> str:
    if algorithm is None:
        return "auto"
    return next((name for name, known in CACHE_ALGORITHMS.items() if algorithm == known), algorithm)
