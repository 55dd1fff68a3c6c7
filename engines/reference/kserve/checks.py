"""Triton's own checks of a request, before any model gets it. The texts are shorter than Triton's, and values come as
raw bytes only.

In: a ModelInferRequest. Out: its input tensors as arrays, or a Refusal. Knows only the declared tensors.
"""

from math import prod

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from engines.reference.trtllm_contract import INPUTS, MAX_BATCH_SIZE, NUMPY_TYPES, OUTPUTS, Array, ContractError, Tensor

DECLARED = {tensor.name: tensor for tensor in INPUTS}
REQUIRED = [tensor.name for tensor in INPUTS if tensor.is_required]
OUTPUT_NAMES = {tensor.name for tensor in OUTPUTS}


class Refusal(Exception):
    """Triton would not take this request. The gateway reads the text for an unknown input, which is Triton's own."""


def read_inputs(request: pb.ModelInferRequest) -> dict[str, Array]:
    raw = iter(request.raw_input_contents)
    arrays: dict[str, Array] = {}
    for tensor in request.inputs:
        if tensor.name not in DECLARED:
            raise Refusal(f"unexpected inference input '{tensor.name}' for model '{request.model_name}'")
        if tensor.name in arrays:
            raise Refusal(f"input '{tensor.name}' already exists in request")
        data = next(raw, None)
        if data is None:
            raise Refusal(f"unable to find data for input tensor '{tensor.name}'")
        arrays[tensor.name] = _read(tensor, DECLARED[tensor.name], data)
    _check(request, arrays)
    return arrays


def _check(request: pb.ModelInferRequest, arrays: dict[str, Array]) -> None:
    """Checks the count alone, as Triton does: a required input may be missing if another one makes up the number."""
    for output in request.outputs:
        if output.name not in OUTPUT_NAMES:
            raise Refusal(f"unexpected inference output '{output.name}'")
    if len(arrays) < len(REQUIRED):
        missing = [name for name in REQUIRED if name not in arrays]
        raise Refusal(f"got {len(arrays)} inputs, but missing required input(s) {missing}")
    batches = {array.shape[0] for array in arrays.values()}
    if len(batches) > 1 or min(batches) < 1:
        raise Refusal("the inputs' batch sizes do not match")
    if max(batches) > MAX_BATCH_SIZE:
        raise Refusal(f"inference request batch-size must be <= {MAX_BATCH_SIZE}")


def _read(tensor: pb.ModelInferRequest.InferInputTensor, declared: Tensor, data: bytes) -> Array:
    name, shape = f"input '{tensor.name}'", list(tensor.shape)
    if tensor.datatype != declared.datatype:
        raise Refusal(f"inference {name} data-type is '{tensor.datatype}', '{declared.datatype}' was expected")
    expected = (-1, *declared.dims)
    if len(shape) != len(expected) or any(want not in {-1, have} for want, have in zip(expected, shape, strict=True)):
        raise Refusal(f"unexpected shape for {name}: {shape}, {list(expected)} was expected")
    if declared.datatype == "BYTES":
        return np.array(_read_strings(name, data, prod(shape)), np.object_).reshape(shape)
    dtype = np.dtype(NUMPY_TYPES[declared.datatype])
    if len(data) != prod(shape) * dtype.itemsize:
        raise Refusal(f"input byte size mismatch for {name}: {len(data)}, {prod(shape) * dtype.itemsize} was expected")
    return np.frombuffer(data, dtype).reshape(shape)


def _read_strings(name: str, data: bytes, expected: int) -> list[bytes]:
    """Reads strings, each preceded by its length in four bytes."""
    strings, at = [], 0
    while at < len(data):
        begin = at + 4
        if begin > len(data):
            raise Refusal(f"incomplete string length indicator for inference {name}")
        at = begin + int.from_bytes(data[at:begin], "little")
        if at > len(data):  # the model's process finds this, not Triton
            raise ContractError(f"incomplete string data for inference {name}")
        strings.append(data[begin:at])
    if len(strings) != expected:
        raise Refusal(f"{len(strings)} string elements for inference {name}, {expected} expected")
    return strings
