"""Servers on real sockets that are wrong in one thing: each stands before a real engine and changes what that one says.

In: the engine's address, and what to change. Out: an address for crossover.yaml.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tritonclient.grpc import service_pb2_grpc

Message: TypeAlias = Any  # tritonclient publishes no types
Change: TypeAlias = Callable[[Message], object]  # of a model's configuration, in place


class WrongTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped in tritonclient
    """Every call goes on to a real server; `change` has its way with the configuration of the model.

    `takes_turns`: a request is passed on when the one before it has ended, as by an engine without in-flight batching.
    """

    def __init__(
        self, url: str, change: Change = lambda _: None, *, takes_turns: bool = False, restricts_config: bool = False
    ) -> None:
        self._url = url
        self._restricts_config = restricts_config
        self._change = change
        self._turns = asyncio.Semaphore(1 if takes_turns else 1000)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with grpc.aio.insecure_channel(self._url.removeprefix("grpc://")) as channel:
            self._real = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                yield f"grpc://127.0.0.1:{port}"
            finally:
                await server.stop(grace=None)

    async def ServerReady(self, request: Message, context: object) -> Message:  # noqa: N802 - the service's own name
        return await self._real.ServerReady(request)

    async def ModelReady(self, request: Message, context: object) -> Message:  # noqa: N802 - as above
        return await self._real.ModelReady(request)

    async def ServerMetadata(self, request: Message, context: object) -> Message:  # noqa: N802 - as above
        return await self._real.ServerMetadata(request)

    async def ModelMetadata(self, request: Message, context: object) -> Message:  # noqa: N802 - as above
        return await self._real.ModelMetadata(request)

    async def ModelConfig(self, request: Message, context: Any) -> Message:  # noqa: N802 - as above
        if self._restricts_config:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header x")
        answer = await self._real.ModelConfig(request)
        self._change(answer.config)
        return answer

    async def ModelStreamInfer(  # noqa: N802 - as above
        self, requests: AsyncIterator[Message], context: object
    ) -> AsyncIterator[Message]:
        await self._turns.acquire()
        try:
            async for response in self._real.ModelStreamInfer(requests):
                yield response
        finally:
            self._turns.release()


Edit: TypeAlias = Callable[[bytes], bytes]


class WrongVLLM:
    """Every request goes on to a real server; `edits` by path have their way with its answers, `pages` are its own."""

    def __init__(self, url: str, *, edits: Mapping[str, Edit] | None = None, pages: Mapping[str, bytes] | None = None):
        self._url = url
        self._edits = edits or {}
        self._pages = pages or {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none"))
        listener = server.config.bind_socket()
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as self._real, asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve([listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await serving
                listener.close()

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path in self._pages:
            return Response(self._pages[path])
        asked = self._real.build_request(request.method, path, content=await request.body(), headers=_kept(request))
        answer = await self._real.send(asked, stream=True)
        if path in self._edits:
            return Response(self._edits[path](await answer.aread()), answer.status_code)
        return StreamingResponse(_pass_on(answer), answer.status_code)


def _kept(request: Request) -> dict[str, str]:
    return {"content-type": request.headers.get("content-type", "application/json")}


async def _pass_on(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
