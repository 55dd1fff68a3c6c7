"""Triton's messages: stream responses, metadata and model configuration.

In: plain values and arrays. Out: protobuf messages. Pure; knows no connection and no engine.
"""

from collections.abc import Collection, Mapping

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from engines.reference.trtllm_contract import (
    GUIDED_DECODING_BACKEND,
    INPUTS,
    MAX_BATCH_SIZE,
    NUMPY_TYPES,
    OUTPUTS,
    Array,
    Tensor,
)

MODEL_VERSION = "1"
SERVER_VERSION = "2.51.0"  # the release whose behaviour this wire shows
EXTENSIONS = ("model_configuration", "binary_tensor_data", "parameters")
CONFIG_TYPES = {"BYTES": "STRING"}  # where the model configuration has another name for a datatype
DATATYPES = {NUMPY_TYPES[tensor.datatype]: tensor.datatype for tensor in (*INPUTS, *OUTPUTS)}


def response(
    request: pb.ModelInferRequest, output: Mapping[str, Array], names: Collection[str], *, is_final: bool
) -> pb.ModelStreamInferResponse:
    """One response with the tensors named; without any, the empty final response."""
    message = pb.ModelStreamInferResponse()
    infer = message.infer_response
    infer.model_name, infer.model_version, infer.id = request.model_name, MODEL_VERSION, request.id
    infer.parameters["triton_final_response"].bool_param = is_final
    for name in names:
        array = output[name]
        infer.outputs.add(name=name, datatype=DATATYPES[array.dtype.type], shape=array.shape)
        infer.raw_output_contents.append(array.tobytes())
    return message


def refusal(request: pb.ModelInferRequest, text: str) -> pb.ModelStreamInferResponse:
    """Makes the error of a request that is refused at submission: it has no parameters at all."""
    message = pb.ModelStreamInferResponse(error_message=text)
    message.infer_response.id = request.id
    return message


def failure(request: pb.ModelInferRequest, text: str) -> pb.ModelStreamInferResponse:
    """Makes an error that the model raised: final, and without a model version."""
    message = refusal(request, text)
    message.infer_response.model_name = request.model_name
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return message


def server_metadata() -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(name="triton", version=SERVER_VERSION, extensions=EXTENSIONS)


def model_metadata(name: str) -> pb.ModelMetadataResponse:
    def declare(tensor: Tensor) -> pb.ModelMetadataResponse.TensorMetadata:
        shape = (-1, *tensor.dims)
        return pb.ModelMetadataResponse.TensorMetadata(name=tensor.name, datatype=tensor.datatype, shape=shape)

    return pb.ModelMetadataResponse(
        name=name,
        versions=[MODEL_VERSION],
        platform="python",
        inputs=[declare(tensor) for tensor in INPUTS],
        outputs=[declare(tensor) for tensor in OUTPUTS],
    )


def model_config(name: str, *, follows_guides: bool = True) -> pb.ModelConfigResponse:
    config = mc.ModelConfig(
        name=name, backend="python", max_batch_size=MAX_BATCH_SIZE, default_model_filename="model.py"
    )
    config.model_transaction_policy.decoupled = True
    config.parameters["guided_decoding_backend"].string_value = GUIDED_DECODING_BACKEND if follows_guides else ""
    for tensor in INPUTS:
        declared = config.input.add(name=tensor.name, optional=not tensor.is_required, dims=tensor.dims)
        declared.data_type = mc.DataType.Value(f"TYPE_{CONFIG_TYPES.get(tensor.datatype, tensor.datatype)}")
        if tensor.dims == (1,):
            declared.reshape.SetInParent()
        else:
            declared.allow_ragged_batch = True
    for tensor in OUTPUTS:
        data_type = mc.DataType.Value(f"TYPE_{tensor.datatype}")
        config.output.add(name=tensor.name, dims=tensor.dims, data_type=data_type)
    return pb.ModelConfigResponse(config=config)
