"""The token lane to Triton over gRPC: ids in, ids out, by ModelStreamInfer to the `tensorrt_llm` model.

Implements core.Backend. The messages' form is triton_tensors' affair, connections and calls are rpc's.
"""

import asyncio
import logging
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.backends.calls import LARGEST_VOCABULARY, End, LiveCall, LiveCalls
from gateway.backends.needs import corrected
from gateway.backends.rpc.aio import AioClient
from gateway.backends.rpc.channel import Channel, RpcError, Stream, unary
from gateway.backends.rpc.h2_client import H2Client
from gateway.backends.rpc.status import Outcome, Status
from gateway.backends.triton_config import PLAIN, Abilities, read_abilities
from gateway.backends.triton_tensors import Answer, encode
from gateway.core import Call, GenerateRequest, Need, Sink
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

READY_TIMEOUT_S = 5.0

# The connection is gone, or nothing was begun. (Our own cancels are never reported.)
LOST = {Status.UNAVAILABLE, Status.CANCELLED, Status.ABORTED, Status.RESOURCE_EXHAUSTED}


class TritonCall(LiveCall):
    """One answer from Triton: a gRPC stream of its own, since cancelling a stream cancels every request on it."""

    def __init__(self, backend: "TritonBackend", request: GenerateRequest, sink: Sink) -> None:
        super().__init__(backend.calls, sink, request.params, Answer(backend.name, request, backend.id_limit))
        self._peer = backend.name
        self._backend = backend
        call_id = f"{request.request_id}-{token_hex(4)}"
        message = encode(request, backend.model, call_id, backend.vocab_size)
        self._stream: Stream | None = backend.channel.start(STREAM_INFER, message.SerializeToString(), self)

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def release(self) -> None:
        self._stream = None  # it holds us as its receiver
        super().release()

    # What the stream tells it. It goes on to the stream's own end, beyond the final response.

    messages = LiveCall.take

    def closed(self, outcome: Outcome) -> None:
        if not self.is_over:
            self.fail(status_error(self._peer, outcome))
        self.release()

    def _end(self, end: End) -> None:
        if isinstance(end, NeedRefused):
            self._backend.lose(Need(end.need))
        super()._end(end)


class TritonBackend:
    """One Triton server, and the model on it that speaks token ids.

    What the model can do is read from its configuration each time it has become ready; until then it is taken for able
    to do nothing special, and while it is away for what it was. What its engine refuses all the same it cannot do until
    the configuration is read again. `vocab_size`: the model's logits, 0 if unknown.
    """

    def __init__(self, settings: TritonSettings, channel: Channel | None = None, vocab_size: int = 0) -> None:
        self.name = settings.name
        self.model = settings.model
        self._settings = settings
        self._known_vocab_size = vocab_size
        self.id_limit = vocab_size or LARGEST_VOCABULARY  # ids of answers are below
        self._learn(Abilities(PLAIN, vocab_size))
        self._is_learnt = False
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        self.channel = channel or open_channel(settings)

    def __repr__(self) -> str:
        return f"<TritonBackend {self.name} {self.calls!r} {self.channel!r}>"

    def start(self, request: GenerateRequest, sink: Sink) -> Call:
        return TritonCall(self, request, sink)

    def lose(self, need: Need) -> None:
        """Its engine has refused it, whatever the configuration or the operator says."""
        logger.warning("%s does not support %s after all: such requests go elsewhere", self.name, need)
        self.capabilities -= {need}

    async def is_ready(self) -> bool:
        is_ready = await self._ask_ready()
        if not is_ready:
            self._is_learnt = False  # what comes back may be another model
            self.calls.fail_waiting()
        return is_ready

    async def aclose(self) -> None:
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        await self.channel.aclose()

    async def _ask_ready(self) -> bool:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return await self._serves_model()
        except RpcError as exc:
            logger.debug("%s is not ready: %s", self.name, exc)
            return False
        except TimeoutError:
            self.channel.renew()  # the connection may be dead, as after a power cut or behind a firewall that forgot it
            return False

    async def _serves_model(self) -> bool:
        server = service_pb2.ServerReadyResponse()
        model = service_pb2.ModelReadyResponse()
        if not await self._ask(SERVER_READY, service_pb2.ServerReadyRequest(), server) or not server.ready:
            return False
        asked = service_pb2.ModelReadyRequest(name=self.model)
        if not await self._ask(MODEL_READY, asked, model) or not model.ready:
            return False
        if not self._is_learnt:
            await self._read_config()
        return True

    async def _read_config(self) -> None:
        """A server may refuse to tell: its model then does what every one does, and is asked again."""
        answer = service_pb2.ModelConfigResponse()
        try:
            self._is_learnt = await self._ask(MODEL_CONFIG, service_pb2.ModelConfigRequest(name=self.model), answer)
        except RpcError as exc:
            logger.debug("%s does not tell its model's configuration: %s", self.name, exc)
            return
        if self._is_learnt:
            self._learn(read_abilities(answer.config, self._known_vocab_size))

    def _learn(self, abilities: Abilities) -> None:
        self.capabilities = corrected(abilities.needs, self._settings.capabilities)
        self.vocab_size = abilities.vocab_size

    async def _ask(self, path: str, request: Any, response: Any) -> bool:  # Any: untyped protobuf messages
        """Fill in `response`; False if it cannot be read. Raises RpcError."""
        data = await unary(self.channel, path, request.SerializeToString())
        try:
            response.ParseFromString(data)
        except DecodeError:
            return False
        return True


def open_channel(settings: TritonSettings) -> Channel:
    """Our own HTTP/2 for grpc://, grpc.aio for grpcs://, whose roots are those grpc finds."""
    url = urlsplit(settings.url)
    if url.scheme == "grpcs":
        credentials = grpc.ssl_channel_credentials()
        return AioClient(url.netloc, connect_timeout_s=settings.connect_timeout_s, credentials=credentials)
    if url.hostname is None or url.port is None:
        raise ValueError(f"not a grpc://host:port address: {settings.url}")
    return H2Client(url.hostname, url.port, connect_timeout_s=settings.connect_timeout_s)


def status_error(peer: str, outcome: Outcome) -> GatewayError:
    """What it means that a stream ended like this without a last response; its details go to the debug log only."""
    logger.debug("%s: %s", peer, outcome)
    status = outcome.status
    if status is Status.OK:
        return BackendUnavailable(f"{peer} ended its answer early")
    # Nothing can have been begun of a request that has not gone out completely.
    if status in LOST or (status is Status.INTERNAL and not outcome.is_sent):
        return BackendUnavailable(f"{peer} cannot be reached, or was lost")
    if status is Status.DEADLINE_EXCEEDED:
        return BackendTimeout(f"{peer} let a deadline pass")
    if status is Status.UNIMPLEMENTED:
        return BackendProtocolError(f"{peer} does not speak KServe's ModelStreamInfer")
    return BackendError(f"{peer} failed ({status.name})")
