"""Reads a Triton server: its metadata over gRPC, TensorRT-LLM's counts on its metrics page."""

import asyncio
import hashlib
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.backends.rpc.unary import RpcError, unary
from gateway.backends.triton import SERVICE, open_channel
from gateway.evidence import Http, Identity, NoAnswer, Size
from gateway.evidence.exposition import sum_count
from gateway.evidence.http import TIMEOUT_S
from gateway.settings import TritonSettings

Message: TypeAlias = Any  # tritonclient publishes no types


class TritonReader:
    """Implements evidence.Reader. Its connection is its own, so that it never holds up the one that carries tokens."""

    def __init__(self, settings: TritonSettings, http: Http) -> None:
        self._settings = settings
        self._http = http
        self._channel = open_channel(settings)

    async def read_metrics(self) -> bytes | None:
        url = self._settings.metrics_url
        answer = None if url is None else await self._http.fetch(url)
        return None if answer is None else answer.body

    def count(self, page: bytes) -> int | None:
        """Returns `active`, every request that the executor holds; some of them wait: waiting = active - scheduled."""
        return sum_count(page, "nv_trt_llm_request_metrics", request_type="active", model=self._settings.model)

    def read_size(self, page: bytes) -> Size:
        """Reads TensorRT-LLM's gauges: the KV cache's blocks and the most requests at once."""
        model = self._settings.model
        blocks, tokens = (
            sum_count(page, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind, model=model) or 0
            for kind in ("max", "tokens_per")
        )
        most = sum_count(page, "nv_trt_llm_request_metrics", request_type="max", model=model) or 0
        found = {"kv_tokens": blocks * tokens, "max_sequences": most}
        return {name: value for name, value in found.items() if value}

    async def identify(self, page: bytes | None) -> Identity:
        server = await self.read_server()
        request = service_pb2.ModelMetadataRequest(name=self._settings.model)
        model = await self._ask("ModelMetadata", request, service_pb2.ModelMetadataResponse())
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
        """Returns the server's ServerMetadata. Raises NoAnswer."""
        response = service_pb2.ServerMetadataResponse()
        return await self._ask("ServerMetadata", service_pb2.ServerMetadataRequest(), response)

    async def read_config(self) -> Message:
        """Returns the model's ModelConfig. Raises NoAnswer."""
        request = service_pb2.ModelConfigRequest(name=self._settings.model)
        return (await self._ask("ModelConfig", request, service_pb2.ModelConfigResponse())).config

    async def aclose(self) -> None:
        await self._channel.aclose()

    async def _ask(self, method: str, request: Message, response: Message) -> Message:
        """Fills in `response` and returns it. Raises NoAnswer."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                data = await unary(self._channel, f"{SERVICE}/{method}", request.SerializeToString())
            response.ParseFromString(data)
        except TimeoutError as exc:
            self._channel.renew()  # the connection may be dead
            raise NoAnswer(f"no answer in {TIMEOUT_S:g} s") from exc
        except RpcError as exc:
            raise NoAnswer(str(exc)) from exc
        except DecodeError as exc:
            raise NoAnswer("an answer that cannot be read") from exc
        return response


def _digest(config: Message) -> str:
    """Returns a digest of the configuration: engine directory, batching, KV cache and all else in config.pbtxt."""
    return hashlib.sha256(config.SerializeToString(deterministic=True)).hexdigest()[:16]
