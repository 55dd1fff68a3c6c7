"""Triton's own checks of a request, before any model gets it, in Triton's order and words.

In: a ModelInferRequest. Out: its input tensors as arrays, or a Refusal. Knows only the declared tensors.
"""

from math import prod

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from engines.reference.trtllm_contract import INPUTS, MAX_BATCH_SIZE, NUMPY_TYPES, OUTPUTS, Array, ContractError, Tensor

DECLARED = {tensor.name: tensor for tensor in INPUTS}
REQUIRED = [tensor.name for tensor in INPUTS if tensor.is_required]
OUTPUT_NAMES = {tensor.name for tensor in OUTPUTS}
# Where a tensor's values lie if they are not raw bytes; Triton names the type of the field it found.
TYPED_CONTENTS = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class Refusal(Exception):
    """Triton would not take this request; the message is Triton's."""


def read_inputs(request: pb.ModelInferRequest) -> dict[str, Array]:
    data = _collect(request)
    _check_outputs(request)
    _check_count(request)
    shapes = {tensor.name: list(tensor.shape) for tensor in request.inputs}
    for tensor in request.inputs:
        _check_type_and_shape(request, tensor)
    _check_batch(request, shapes)
    return {name: _array(request, DECLARED[name], data[name], shape) for name, shape in shapes.items()}


def _prefix(request: pb.ModelInferRequest) -> str:
    return f"[request id: {request.id or '<id_unknown>'}] "


def _collect(request: pb.ModelInferRequest) -> dict[str, bytes]:
    """Each input's bytes by name, raw or from its typed contents."""
    raw = iter(request.raw_input_contents)
    data: dict[str, bytes] = {}
    for tensor in request.inputs:
        if tensor.name not in DECLARED:
            raise Refusal(f"unexpected inference input '{tensor.name}' for model '{request.model_name}'")
        if tensor.name in data:
            raise Refusal(f"{_prefix(request)}input '{tensor.name}' already exists in request")
        content = _typed(request, tensor) if tensor.HasField("contents") else next(raw, None)
        if content is None:
            raise Refusal(
                f"unable to find data for input tensor '{tensor.name}' for model '{request.model_name}' in request."
            )
        data[tensor.name] = content
    return data


def _typed(request: pb.ModelInferRequest, tensor: pb.ModelInferRequest.InferInputTensor) -> bytes | None:
    for field, found in TYPED_CONTENTS.items():
        values = getattr(tensor.contents, field)
        if not len(values):
            continue
        if found != tensor.datatype or found not in NUMPY_TYPES:
            raise Refusal(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{request.model_name}' "
                f"of type '{found}', expected datatype '{tensor.datatype}'"
            )
        if found == "BYTES":
            return b"".join(len(value).to_bytes(4, "little") + value for value in values)
        return np.array(values, NUMPY_TYPES[found]).tobytes()
    return None


def _check_outputs(request: pb.ModelInferRequest) -> None:
    for output in request.outputs:
        if output.name not in OUTPUT_NAMES:
            raise Refusal(f"unexpected inference output '{output.name}' for model '{request.model_name}'")


def _check_count(request: pb.ModelInferRequest) -> None:
    """Triton checks the count alone, so a required input may be missing if another one makes up the number."""
    given = [tensor.name for tensor in request.inputs]
    if len(given) >= len(REQUIRED):
        return
    missing = [name for name in REQUIRED if name not in given]
    raise Refusal(
        f"{_prefix(request)}expected number of inputs between {len(REQUIRED)} and {len(INPUTS)} but got {len(given)} "
        f"inputs for model '{request.model_name}'. Got input(s) {_quoted(given)}, but missing required input(s) "
        f"{_quoted(missing)}. Please provide all required input(s)."
    )


def _quoted(names: list[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _check_type_and_shape(request: pb.ModelInferRequest, tensor: pb.ModelInferRequest.InferInputTensor) -> None:
    declared, shape = DECLARED[tensor.name], list(tensor.shape)
    if tensor.datatype != declared.datatype:
        known = tensor.datatype if tensor.datatype in TYPED_CONTENTS.values() else "<invalid>"
        raise Refusal(
            f"{_prefix(request)}inference input '{tensor.name}' data-type is '{known}', but model "
            f"'{request.model_name}' expects '{declared.datatype}'"
        )
    fits = len(shape) == len(declared.dims) + 1 and all(
        want in {-1, have} for want, have in zip(declared.dims, shape[1:], strict=True)
    )
    if not fits:
        expected = ",".join(map(str, (-1, *declared.dims)))
        raise Refusal(
            f"{_prefix(request)}unexpected shape for input '{tensor.name}' for model '{request.model_name}'. Expected "
            f"[{expected}], got [{','.join(map(str, shape))}]. {BATCH_NOTE}"
        )


def _check_batch(request: pb.ModelInferRequest, shapes: dict[str, list[int]]) -> None:
    batch = next(iter(shapes.values()))[0]
    for name, shape in shapes.items():
        if shape[0] != batch or batch < 1:
            raise Refusal(
                f"{_prefix(request)}input '{name}' batch size does not match other inputs for '{request.model_name}'"
            )
    if batch > MAX_BATCH_SIZE:
        raise Refusal(
            f"{_prefix(request)}inference request batch-size must be <= {MAX_BATCH_SIZE} for '{request.model_name}'"
        )


def _array(request: pb.ModelInferRequest, declared: Tensor, data: bytes, shape: list[int]) -> Array:
    if declared.datatype == "BYTES":
        return _strings(request, declared, data, shape)
    dtype = np.dtype(NUMPY_TYPES[declared.datatype])
    expected = prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise Refusal(
            f"{_prefix(request)}input byte size mismatch for input '{declared.name}' for model "
            f"'{request.model_name}'. Expected {expected}, got {len(data)}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _strings(request: pb.ModelInferRequest, declared: Tensor, data: bytes, shape: list[int]) -> Array:
    """Each is preceded by its length in four bytes."""
    where, strings, at = f"for inference input '{declared.name}'", [], 0
    while at < len(data):
        begin = at + 4
        if begin > len(data):
            raise Refusal(
                f"{_prefix(request)}incomplete string length indicator {where} for model '{request.model_name}', "
                f"expecting 4 bytes but only {len(data) - at} bytes available. Please make sure the string length "
                "indicator is in one buffer."
            )
        at = begin + int.from_bytes(data[at:begin], "little")
        if at > len(data):  # found by the model's process, not by Triton
            raise ContractError(
                f"incomplete string data {where}, expecting string of length {at - begin} but only "
                f"{len(data) - begin} bytes available"
            )
        strings.append(data[begin:at])
    _check_strings(request, where, len(strings), prod(shape))
    return np.array(strings, np.object_).reshape(shape)


def _check_strings(request: pb.ModelInferRequest, where: str, count: int, expected: int) -> None:
    where = f"{where} for model '{request.model_name}'"
    if count < expected:
        raise Refusal(f"{_prefix(request)}expected {expected} string elements {where}, got {count}")
    if count > expected:
        raise Refusal(f"{_prefix(request)}unexpected number of string elements {count} {where}, expecting {expected}")
