"""The token lane to Triton over gRPC: ids in, ids out, by ModelStreamInfer to the `tensorrt_llm` model.

Implements core.TokenBackend. triton_tensors encodes and parses; rpc owns the connections and calls.
"""

import logging
import ssl
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.backends.calls import LARGEST_VOCABULARY, End, LiveCall, LiveCalls
from gateway.backends.capabilities import apply_overrides
from gateway.backends.rpc.call import Outcome, Status
from gateway.backends.rpc.h2_client import H2Client
from gateway.backends.rpc.h2_stream import H2Stream
from gateway.backends.rpc.unary import RpcError, unary
from gateway.backends.triton_config import DEFAULT_NEEDS, ModelCapabilities, read_capabilities
from gateway.backends.triton_tensors import TensorReader, encode
from gateway.core import NO_CACHE_USE, Call, GenerateRequest, Need, Sink
from gateway.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    NeedRefused,
)
from gateway.settings import TritonSettings

logger = logging.getLogger(__name__)

SERVICE = "/inference.GRPCInferenceService"
STREAM_INFER = f"{SERVICE}/ModelStreamInfer"
SERVER_READY = f"{SERVICE}/ServerReady"
MODEL_READY = f"{SERVICE}/ModelReady"
MODEL_CONFIG = f"{SERVICE}/ModelConfig"

# The connection was lost, or nothing was begun. (Our own cancels are never reported.)
LOST_STATUSES = {Status.UNAVAILABLE, Status.CANCELLED, Status.ABORTED, Status.RESOURCE_EXHAUSTED}


class TritonCall(LiveCall):
    """One answer from Triton: a gRPC stream of its own, since cancelling a stream cancels every request on it."""

    def __init__(self, backend: "TritonBackend", request: GenerateRequest, sink: Sink) -> None:
        super().__init__(backend.calls, sink, request, TensorReader(backend.name, request, backend.id_limit))
        self._peer = backend.name
        self._backend = backend
        call_id = f"{request.request_id}-{token_hex(4)}"
        message = encode(request, backend.model, call_id, backend.vocab_size)
        self._stream: H2Stream | None = backend.channel.start(STREAM_INFER, message.SerializeToString(), self)

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def release(self) -> None:
        self._stream = None  # it keeps this call as its receiver
        super().release()

    # call.Receiver. The stream is read to its own end, after the final response; `receive` is LiveCall's.

    def closed(self, outcome: Outcome) -> None:
        if not self.is_over:
            self.fail(status_error(self._peer, outcome))
        self.release()

    def _end(self, end: End) -> None:
        if isinstance(end, NeedRefused):
            self._backend.drop_need(Need(end.need))
        super()._end(end)


class TritonBackend:
    """One Triton server, and the model on it that takes and returns token ids.

    The needs that the model serves are read from its configuration each time the model becomes ready. Before the first
    time they are DEFAULT_NEEDS; while the model is not ready they stay. A need that the engine refuses is dropped until
    the configuration is read again. `vocab_size`: how many logits the model has, 0 if unknown.
    """

    def __init__(self, settings: TritonSettings, channel: H2Client | None = None, vocab_size: int = 0) -> None:
        self.name = settings.name
        self.cache_use = NO_CACHE_USE
        self.model = settings.model
        self._settings = settings
        self._known_vocab_size = vocab_size
        self.id_limit = vocab_size or LARGEST_VOCABULARY  # an upper bound of the ids of answers
        self._set_capabilities(ModelCapabilities(DEFAULT_NEEDS, vocab_size))
        self._has_read_config = False
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        self.channel = channel or open_channel(settings)

    def __repr__(self) -> str:
        return f"<TritonBackend {self.name} {self.calls!r} {self.channel!r}>"

    def start(self, request: GenerateRequest, sink: Sink) -> Call:
        return TritonCall(self, request, sink)

    def drop_need(self, need: Need) -> None:
        """Drops a need that the engine has refused, in spite of the configuration or the operator's settings."""
        logger.warning("%s does not support %s after all: such requests go elsewhere", self.name, need)
        self.capabilities -= {need}

    async def is_ready(self) -> bool:
        is_ready = await self.calls.ask_ready(self._serves_model(), self.renew)
        if not is_ready:
            self._has_read_config = False  # the server may come back with another model
        return is_ready

    def renew(self) -> None:
        self.channel.renew()

    async def aclose(self) -> None:
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        await self.channel.aclose()

    async def _serves_model(self) -> bool:
        server = service_pb2.ServerReadyResponse()
        model = service_pb2.ModelReadyResponse()
        asked = service_pb2.ModelReadyRequest(name=self.model)
        try:
            if not await self._call(SERVER_READY, service_pb2.ServerReadyRequest(), server) or not server.ready:
                return False
            if not await self._call(MODEL_READY, asked, model) or not model.ready:
                return False
        except RpcError as exc:
            logger.debug("%s is not ready: %s", self.name, exc)
            return False
        if not self._has_read_config:
            await self._read_config()
        return True

    async def _read_config(self) -> None:
        """Sets the capabilities. If the server refuses, they stay, and the next probe asks again."""
        answer = service_pb2.ModelConfigResponse()
        try:
            self._has_read_config = await self._call(
                MODEL_CONFIG, service_pb2.ModelConfigRequest(name=self.model), answer
            )
        except RpcError as exc:
            logger.debug("%s does not return its model's configuration: %s", self.name, exc)
            return
        if self._has_read_config:
            self._set_capabilities(read_capabilities(answer.config, self._known_vocab_size))

    def _set_capabilities(self, capabilities: ModelCapabilities) -> None:
        self.capabilities = apply_overrides(capabilities.needs, self._settings.capabilities)
        self.vocab_size = capabilities.vocab_size

    async def _call(self, path: str, request: Any, response: Any) -> bool:  # Any: untyped protobuf messages
        """Fills in `response`; returns False if it cannot be parsed. Raises RpcError."""
        data = await unary(self.channel, path, request.SerializeToString())
        try:
            response.ParseFromString(data)
        except DecodeError:
            return False
        return True


def open_channel(settings: TritonSettings) -> H2Client:
    """Returns a client for grpc://, or for grpcs:// with the system's root certificates."""
    url, tls = urlsplit(settings.url), None
    if url.hostname is None or url.port is None:
        raise ValueError(f"not a grpc://host:port address: {settings.url}")
    if url.scheme == "grpcs":
        tls = ssl.create_default_context()
        tls.set_alpn_protocols(["h2"])  # without it gRPC's servers refuse
    return H2Client(url.hostname, url.port, connect_timeout_s=settings.connect_timeout_s, tls=tls)


def status_error(peer: str, outcome: Outcome) -> GatewayError:
    """Returns the error for a stream that ended without a final response. Details go only to the debug log."""
    logger.debug("%s: %s", peer, outcome)
    status = outcome.status
    if status is Status.OK:
        return BackendUnavailable(f"{peer} ended its answer early", was_lost=False)
    # A request that was not sent completely cannot have begun.
    if status in LOST_STATUSES or (status is Status.INTERNAL and not outcome.is_sent):
        return BackendUnavailable(f"{peer} cannot be reached, or was lost", was_lost=outcome.is_sent)
    if status is Status.DEADLINE_EXCEEDED:
        return BackendTimeout(f"{peer} let a deadline pass")
    if status is Status.UNIMPLEMENTED:
        return BackendProtocolError(f"{peer} does not speak KServe's ModelStreamInfer")
    return BackendError(f"{peer} failed ({status.name})")
