"""What a Triton server tells of itself: its metadata over gRPC, TensorRT-LLM's counts on its metrics page."""

import asyncio
import hashlib
from collections.abc import Awaitable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.evidence.exposition import sum_count
from gateway.evidence.pages import TIMEOUT_S, Pages, Silent
from gateway.evidence.values import Identity
from gateway.settings import TritonSettings

Message: TypeAlias = Any  # tritonclient publishes no types

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_reconnect_backoff_ms", 2000),  # by default a server that was away for long is not asked for two minutes
    ("grpc.use_local_subchannel_pool", 1),  # the lane that carries tokens keeps its connection and back-off to itself
    ("grpc.enable_http_proxy", 0),  # engines are neighbours: a proxy in the environment is not meant for them
]


class TritonReader:
    """Implements readers.Reader."""

    def __init__(self, settings: TritonSettings, pages: Pages) -> None:
        self._url = settings.url
        self._model = settings.model
        self._metrics_url = settings.metrics_url
        self._pages = pages
        self._channel: grpc.aio.Channel | None = None

    async def read_metrics(self) -> bytes | None:
        return None if self._metrics_url is None else await self._pages.fetch(self._metrics_url)

    def count(self, page: bytes) -> int | None:
        """`active` is every request the executor holds, those that wait included: waiting = active - scheduled."""
        return sum_count(page, "nv_trt_llm_request_metrics", request_type="active", model=self._model)

    async def identify(self, page: bytes | None) -> Identity:
        server = await self.read_server()
        model = await _ask(self._stub().ModelMetadata(service_pb2.ModelMetadataRequest(name=self._model)))
        config = await self.read_config()
        return {
            "engine": server.name,
            "version": server.version,
            "model": model.name,
            "model_versions": ",".join(model.versions),
            "platform": model.platform or config.backend,
            "max_batch_size": config.max_batch_size,
            "config": _digest(config),
        }

    async def read_server(self) -> Message:
        """The server's ServerMetadata. Raises Silent."""
        return await _ask(self._stub().ServerMetadata(service_pb2.ServerMetadataRequest()))

    async def read_config(self) -> Message:
        """The model's ModelConfig. Raises Silent."""
        answer = await _ask(self._stub().ModelConfig(service_pb2.ModelConfigRequest(name=self._model)))
        return answer.config

    async def aclose(self) -> None:
        if self._channel is not None:
            await self._channel.close(grace=None)

    def _stub(self) -> Any:  # tritonclient publishes no types
        """Opened on first use, because a grpc.aio channel belongs to the running loop."""
        if self._channel is None:
            self._channel = _open_channel(self._url)
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)


async def _ask(call: Awaitable[Message]) -> Message:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await call
    except grpc.aio.AioRpcError as exc:
        raise Silent(f"{exc.code().name}: {exc.details()}") from exc
    except (grpc.aio.BaseError, TimeoutError) as exc:
        raise Silent(str(exc) or type(exc).__name__) from exc
    if answer is None:  # grpc's word for one that cannot be read
        raise Silent("an answer that cannot be read")
    return answer


def _open_channel(url: str) -> grpc.aio.Channel:
    scheme, _, target = url.partition("://")
    if scheme == "grpcs":
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)


def _digest(config: Message) -> str:
    """Of the whole configuration: engine directory, batching, KV cache and all else that config.pbtxt may set."""
    return hashlib.sha256(config.SerializeToString(deterministic=True)).hexdigest()[:16]
