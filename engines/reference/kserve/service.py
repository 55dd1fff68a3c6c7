# ruff: noqa: N802 - method names are the protocol's
"""The gRPC service: health, metadata and ModelStreamInfer, whose inferences are in stream.py."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as rpc

from engines.reference.kserve import messages
from engines.reference.kserve.checks import Refusal
from engines.reference.kserve.model import ServedModel
from engines.reference.kserve.stream import Stream

Context = aio.ServicerContext[Any, Any]  # the messages are tritonclient's, which publishes no types


class InferenceService(rpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # tritonclient publishes no types
    """Triton's RPCs; those that are not here answer UNIMPLEMENTED."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self._streams: set[Stream] = set()

    def end_streams(self) -> None:
        """Ends all streams with the server: no client waits for a stream that will not go on."""
        for stream in self._streams:
            stream.end(grpc.StatusCode.UNAVAILABLE, "GRPC server is shutting down")

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self.model.runner.is_alive)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        return messages.server_metadata()

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        try:
            self.model.check_name(request.name, request.version)
        except Refusal:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self.model.runner.is_alive)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        await self._check_name(request.name, request.version, context)
        return messages.model_metadata(self.model.name)

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        await self._check_name(request.name, request.version, context)
        return messages.model_config(self.model.name, follows_guides=self.model.limits.check_guide is not None)

    async def ModelStreamInfer(self, requests: AsyncIterator[pb.ModelInferRequest], context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        stream = Stream(self.model, fails_with_status=metadata.get("triton_grpc_error") == "true")
        self._streams.add(stream)
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(stream.read(requests))
                async for message in stream.messages():
                    await context.write(message)
                reader.cancel()
            if stream.ending:
                await context.abort(*stream.ending)
        finally:
            self._streams.discard(stream)
            stream.close()

    async def _check_name(self, name: str, version: str, context: Context) -> None:
        try:
            self.model.check_name(name, version)
        except Refusal as exc:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(exc))
