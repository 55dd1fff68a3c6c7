"""A scripted Triton: a gRPC server with the real service definition, answering for the `tensorrt_llm` model."""

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fakes.script import (
    Asked,
    EndToken,
    FakeEngine,
    Fault,
    Full,
    GrpcStatus,
    Hush,
    Pause,
    Say,
    Stall,
    Step,
    StopWord,
)

FAULTS = {
    "busy": "[request id: 1] Exceeds maximum queue size",
    "too long": "Prompt length (3000) exceeds maximum input length (2048). Set log level to info and check",
    "bad guide": "Grammar error: unterminated character class",
    "unfollowed": "frequency_penalty is not supported by this engine: drafts are made within the model",
    "broken": "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] CUDA runtime error",
}

FORMATS = {"INT32": "i", "UINT64": "Q", "FP32": "f", "BOOL": "?"}

STATUSES: Mapping[int, grpc.StatusCode] = {status.value[0]: status for status in grpc.StatusCode}

Message = Any  # tritonclient publishes no types for its messages


def decode_inputs(request: Message) -> dict[str, tuple[tuple[int, ...], list[Any]]]:
    """Every tensor by name: its shape, and its values in one row. Any: as the datatype says."""
    tensors = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            tensors[tensor.name] = (tuple(tensor.shape), decode_texts(raw))
            continue
        code = FORMATS[tensor.datatype]
        values = struct.unpack(f"<{len(raw) // struct.calcsize('<' + code)}{code}", raw)
        tensors[tensor.name] = (tuple(tensor.shape), list(values))
    return tensors


def decode_texts(raw: bytes) -> list[Any]:
    """Each text has its length before it."""
    texts = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        texts.append(raw[4:end].decode())
        raw = raw[end:]
    return texts


def model_config(
    inputs: Mapping[str, Sequence[int]], parameters: Mapping[str, str], backend: str = "python"
) -> Message:
    """The answer of ModelConfig for a model with these inputs (name to dims) and parameters."""
    response = service_pb2.ModelConfigResponse()
    response.config.backend = backend
    for name, dims in inputs.items():
        response.config.input.add(name=name, dims=dims)
    for name, value in parameters.items():
        response.config.parameters[name].string_value = value
    return response


def tokens_response(request_id: str, token_ids: Sequence[int], *, is_final: bool) -> Message:
    """A response as the TensorRT-LLM backend streams them."""
    response = service_pb2.ModelStreamInferResponse()
    inner = response.infer_response
    inner.id, inner.model_name = request_id, "tensorrt_llm"
    inner.parameters["triton_final_response"].bool_param = is_final
    inner.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, len(token_ids)])
    inner.raw_output_contents.append(struct.pack(f"<{len(token_ids)}i", *token_ids))
    inner.outputs.add(name="sequence_length", datatype="INT32", shape=[1, 1])
    inner.raw_output_contents.append(struct.pack("<i", len(token_ids)))
    return response


def error_response(request_id: str, text: str) -> Message:
    response = service_pb2.ModelStreamInferResponse(error_message=text)
    response.infer_response.id = request_id
    return response


class FakeTriton(FakeEngine):
    """`options`: the gRPC server's. With `credentials` it speaks TLS. `config`: its answer to ModelConfig, or None."""

    def __init__(
        self, options: Sequence[tuple[str, int]] = (), credentials: grpc.ServerCredentials | None = None
    ) -> None:
        super().__init__()
        self._options = options
        self._credentials = credentials
        self.is_server_ready = True
        self.is_model_ready = True
        self.config: Message | None = model_config({"input_ids": [-1]}, {})
        self.configs_told = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeTriton"]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *self._options])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(self), server)
        if self._credentials is None:
            self.port = server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = server.add_secure_port("127.0.0.1:0", self._credentials)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(grace=None)


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped in tritonclient
    def __init__(self, engine: FakeTriton) -> None:
        self._engine = engine

    async def ServerReady(self, request: Message, context: object) -> Message:  # noqa: N802 - the service's own name
        if not self._engine.answers_probes:
            await Stall().wait()
        return service_pb2.ServerReadyResponse(ready=self._engine.is_server_ready)

    async def ModelReady(self, request: Message, context: object) -> Message:  # noqa: N802 - the service's own name
        return service_pb2.ModelReadyResponse(ready=self._engine.is_model_ready and request.name == "tensorrt_llm")

    async def ModelConfig(self, request: Message, context: Any) -> Message:  # noqa: N802 - the service's own name
        if self._engine.config is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header x")
        self._engine.configs_told += 1
        return self._engine.config

    async def ModelStreamInfer(  # noqa: N802 - the service's own name
        self, requests: AsyncIterator[Message], context: Any
    ) -> AsyncIterator[Message]:
        async for request in requests:
            tensors = decode_inputs(request)
            end_id = tensors["end_id"][1][0] if "end_id" in tensors else None
            raw = {**tensors, "id": request.id, "model_name": request.model_name, "message": request}
            asked = Asked(tuple(tensors["input_ids"][1]), end_id, raw)
            self._engine.asked.append(asked)
            async for response in self._play(request.id, self._engine.script(asked), context):
                yield response

    async def _play(self, request_id: str, steps: Sequence[Step], context: Any) -> AsyncIterator[Message]:
        self._engine.running += 1
        try:
            async for response in _responses(request_id, steps):
                yield response
            for last in steps[-1:]:
                if isinstance(last, GrpcStatus):
                    await context.abort(STATUSES[last.code], "as the test wants it")
        except (asyncio.CancelledError, GeneratorExit):
            self._engine.left += 1
            raise
        finally:
            self._engine.running -= 1


async def _responses(request_id: str, steps: Sequence[Step]) -> AsyncIterator[Message]:
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        match step:
            case Say(token_ids):  # the C++ backend flags the last response that has data
                yield tokens_response(request_id, token_ids, is_final=isinstance(following, (StopWord, Full)))
            case Pause() | Stall():
                await step.wait()
            case EndToken():
                yield tokens_response(request_id, (), is_final=True)
            case Fault(kind):
                yield error_response(request_id, FAULTS[kind])
            case Hush() | StopWord() | Full():
                return
