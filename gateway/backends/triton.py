"""The token lane to Triton over gRPC: ids in, ids out, by ModelStreamInfer to the `tensorrt_llm` model.

Implements core.Backend. The messages' form is triton_tensors' affair.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from secrets import token_hex
from typing import Any, TypeAlias

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.backends.calls import LiveCall, LiveCalls
from gateway.backends.triton_tensors import Answer, InferRequest, encode
from gateway.core import Call, GenerateRequest, Sink
from gateway.errors import BackendError, BackendProtocolError, BackendTimeout, BackendUnavailable, GatewayError
from gateway.settings import TritonSettings

logger = logging.getLogger(__name__)

Stub: TypeAlias = Any  # tritonclient publishes no types

END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in grpc-stubs

READY_TIMEOUT_S = 5.0

# The connection is gone, or nothing was begun. (Our own cancels end in CancelledError, never in a status.)
LOST = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class TritonCall(LiveCall):
    """One answer from Triton: a gRPC stream of its own, since cancelling a stream cancels every request on it."""

    def __init__(self, backend: "TritonBackend", request: GenerateRequest, sink: Sink) -> None:
        super().__init__(backend.calls, sink, request.params.max_tokens)
        self._backend = backend
        message = encode(request, backend.model, f"{request.request_id}-{token_hex(4)}")
        self._answer = Answer(backend.name, request)
        self._is_sent = False
        self._stream: Any = None  # grpc's types know nothing of tritonclient's messages
        self._reader: asyncio.Task[None] | None = backend.spawn(self._read(message))

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, message: InferRequest) -> None:
        try:
            self._stream = self._backend.stub().ModelStreamInfer()
            await self._exchange(message)
        except grpc.aio.AioRpcError as exc:
            self.fail(status_error(self._backend.name, exc, is_sent=self._is_sent))
        except GatewayError as exc:
            self.fail(exc)
        except grpc.aio.BaseError:
            self.fail(BackendUnavailable(f"{self._backend.name} was lost"))
        else:
            self.fail(BackendUnavailable(f"{self._backend.name} ended its answer early"))
        finally:
            # A stream that is kept, be it in a cancelled task's traceback, keeps its connection open after the channel.
            self._stream = self._reader = None
            self.release()

    async def _exchange(self, message: InferRequest) -> None:
        """Until the stream's own end, beyond the final response: a cancel there would race with Triton closing it."""
        await self._send(message)
        while (response := await self._stream.read()) is not END_OF_STREAM:
            self.feed(*self._answer.feed(response))
            if self._answer.is_cut:
                self._stream.cancel()
                return

    async def _send(self, message: InferRequest) -> None:
        # On a connection that breaks just now these fail in ways of grpc.aio's own; reading then tells what happened.
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.InternalError):
            await self._stream.write(message)
            self._is_sent = True
            await self._stream.done_writing()


class TritonBackend:
    """One Triton server, and the model on it that speaks token ids."""

    def __init__(self, settings: TritonSettings) -> None:
        self.name = settings.name
        self.model = settings.model
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        self._settings = settings
        self._channel: grpc.aio.Channel | None = None
        self._stub: Stub = None
        self._readers: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<TritonBackend {self.name} {self.calls!r} readers={len(self._readers)}>"

    def start(self, request: GenerateRequest, sink: Sink) -> Call:
        return TritonCall(self, request, sink)

    async def is_ready(self) -> bool:
        is_ready = await self._ask_ready()
        if not is_ready:
            self.calls.fail_waiting()
        return is_ready

    async def _ask_ready(self) -> bool:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return await self._serves_model()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, GatewayError, TimeoutError):
            return False
        except asyncio.CancelledError:
            # Closing a channel ends its calls with CancelledError too; only when it is our task's own must it go on.
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                return False
            raise

    async def aclose(self) -> None:
        self._is_closed = True
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        readers = tuple(self._readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(grace=None)

    def stub(self) -> Stub:
        """Opened on first use, because a grpc.aio channel belongs to the running loop. Raises BackendUnavailable."""
        if self._is_closed:
            raise BackendUnavailable(f"{self.name} is being closed")
        if self._channel is None:
            self._channel = open_channel(self._settings)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub

    def spawn(self, reader: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a call's reader. Owned by this set because it outlives `start`; Call.cancel and aclose() cancel it."""
        task = asyncio.get_running_loop().create_task(reader)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        return task

    async def _serves_model(self) -> bool:
        stub = self.stub()
        server = await stub.ServerReady(service_pb2.ServerReadyRequest())
        if not server.ready:
            return False
        model = await stub.ModelReady(service_pb2.ModelReadyRequest(name=self.model))
        return bool(model.ready)


def open_channel(settings: TritonSettings) -> grpc.aio.Channel:
    """A channel of its own connection that finds a restarted server again within about a second."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # Triton answers pings that come more often than every 300 s on an idle connection with GOAWAY.
        ("grpc.keepalive_time_ms", 330_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # In spite of its name: how long one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(settings.connect_timeout_s * 1000)),
        ("grpc.use_local_subchannel_pool", 1),  # or backends at one address would share back-off and connection
        ("grpc.enable_http_proxy", 0),  # engines are neighbours: a proxy in the environment is not meant for them
    ]
    return grpc.aio.insecure_channel(settings.url.removeprefix("grpc://"), options=options)


def status_error(peer: str, error: grpc.aio.AioRpcError, *, is_sent: bool) -> GatewayError:
    """What a gRPC status means; its details go to the debug log only."""
    code = error.code()
    logger.debug("%s: %s %s", peer, code, error.details())
    # INTERNAL is also what grpc.aio makes up for a request that it could not send: the server has heard nothing then.
    if code in LOST or (code is grpc.StatusCode.INTERNAL and not is_sent):
        return BackendUnavailable(f"{peer} cannot be reached, or was lost")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return BackendTimeout(f"{peer} let a deadline pass")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return BackendProtocolError(f"{peer} does not speak KServe's ModelStreamInfer")
    return BackendError(f"{peer} failed ({code.name})")
