"""Stands in for PyTorch: what the TensorRT-LLM adapter asks of it, with PyTorch's signature."""

import numpy as np

Tensor = np.ndarray


def from_numpy(array: np.ndarray) -> Tensor:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return array
