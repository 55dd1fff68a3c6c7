"""A gRPC client over grpc.aio, for TLS. It has a task per call, and costs several times as much as h2_client.

Implements channel.Channel.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from gateway.backends.rpc.call import Outcome, Receiver, Status

END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in grpc-stubs

# Calls with bytes as messages, and the channel that makes them: the types of grpc-stubs require serializers.
RawCall: TypeAlias = Any
RawChannel: TypeAlias = Any


class AioStream:
    """One call, and the task that reads it."""

    def __init__(self, receiver: Receiver) -> None:
        self._task: asyncio.Task[Outcome] | None = None
        self._receiver: Receiver | None = receiver
        self._call: RawCall = None
        self._is_sent = False

    def cancel(self) -> None:
        """Does what `call.Stream.cancel` does."""
        self._receiver = None
        if self._call is not None:
            self._call.cancel()
        if self._task is not None:
            self._task.cancel()

    def run(self, open_call: Callable[[], RawCall], request: bytes) -> asyncio.Task[Outcome]:
        self._task = asyncio.get_running_loop().create_task(self._run(open_call, request))
        self._task.add_done_callback(self._finished)
        return self._task

    def _finished(self, task: asyncio.Task[Outcome]) -> None:
        self._task = None
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            closed = Outcome(Status.UNAVAILABLE, "the client is being closed", self._is_sent)
            receiver.closed(closed if task.cancelled() else task.result())

    async def _run(self, open_call: Callable[[], RawCall], request: bytes) -> Outcome:
        try:
            self._call = open_call()
            return await self._exchange(request)
        except grpc.aio.AioRpcError as exc:
            # grpc.aio also reports INTERNAL for a request that it could not send.
            return Outcome(Status(exc.code().value[0]), exc.details() or "", self._is_sent)
        except grpc.aio.BaseError as exc:
            return Outcome(Status.UNAVAILABLE, str(exc), self._is_sent)
        finally:
            # A call object that is kept, even by a cancelled task's traceback, keeps its connection open.
            self._call = None

    async def _exchange(self, request: bytes) -> Outcome:
        await self._send(request)
        while (message := await self._call.read()) is not END_OF_STREAM:
            if self._receiver is not None:
                self._receiver.receive([message])
        return Outcome(Status.OK)

    async def _send(self, request: bytes) -> None:
        # If the connection breaks meanwhile, grpc.aio raises these; the following read reports the cause.
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.InternalError):
            await self._call.write(request)
            self._is_sent = True
            await self._call.done_writing()


class AioClient:
    """A grpc.aio channel to host:port, encrypted unless `credentials` is None."""

    def __init__(self, target: str, *, connect_timeout_s: float, credentials: grpc.ChannelCredentials | None) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None
        self._tasks: dict[asyncio.Task[Outcome], grpc.aio.Channel] = {}  # a channel closes when nothing refers to it
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<AioClient {self._target} calls={len(self._tasks)}>"

    def start(self, path: str, request: bytes, receiver: Receiver) -> AioStream:
        stream = AioStream(receiver)
        if self._is_closed:
            loop = asyncio.get_running_loop()
            loop.call_soon(receiver.closed, Outcome(Status.UNAVAILABLE, "the client is closed", is_sent=False))
            return stream
        # The task outlives `start`, so self._tasks owns it; AioStream.cancel and aclose() cancel it.
        channel: RawChannel = self._open()
        task = stream.run(channel.stream_stream(path), request)
        self._tasks[task] = channel
        task.add_done_callback(self._tasks.pop)
        return stream

    def renew(self) -> None:
        self._channel = None  # its keepalive finds a dead connection after 330 s

    async def aclose(self) -> None:
        self._is_closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(grace=None)

    def _open(self) -> grpc.aio.Channel:
        """Opens the channel on first use, because a grpc.aio channel belongs to the running loop."""
        if self._channel is None:
            options = _options(self._connect_timeout_s)
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target, options=options)
            else:
                self._channel = grpc.aio.secure_channel(self._target, self._credentials, options=options)
        return self._channel


def _options(connect_timeout_s: float) -> list[tuple[str, int]]:
    """Returns options for a connection of the channel's own, which finds a restarted server within about a second."""
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # Triton answers pings that come more often than every 300 s on an idle connection with GOAWAY.
        ("grpc.keepalive_time_ms", 330_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # In spite of its name this is the time limit of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", int(connect_timeout_s * 1000)),
        ("grpc.use_local_subchannel_pool", 1),  # else backends at one address share back-off and connection
        ("grpc.enable_http_proxy", 0),  # engines are nearby: a proxy in the environment is not meant for them
    ]
