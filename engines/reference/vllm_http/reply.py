"""The HTTP response of one generation, streamed or whole: an ASGI application that ends with its client.

In: an answer in flight and its body. Out: ASGI messages. One task reads the answer, one waits for the client to leave.
"""

import asyncio
from http import HTTPStatus

import orjson
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from engines.reference.vllm_http.answer import AnswerFailed, AnswerInFlight
from engines.reference.vllm_http.errors import WireError
from engines.reference.vllm_http.logprobs import Json
from engines.reference.vllm_http.responses import Piece, ResponseBody

EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
DONE = b"data: [DONE]\n\n"


class Reply:
    def __init__(self, answer: AnswerInFlight, body: ResponseBody) -> None:
        self._answer = answer
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._answer.start()
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch(receive))
                if self._answer.call.is_streaming:
                    await self._stream(send)
                else:
                    await (await self._fold())(scope, receive, send)
                watcher.cancel()
        finally:
            self._answer.close()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        # Ends the answer, so that the task reading it ends too.
        self._answer.abort()

    async def _fold(self) -> JSONResponse:
        try:
            return JSONResponse(self._body.whole(await self._answer.whole()))
        except AnswerFailed as exc:
            error = failure(exc)
            return JSONResponse(error.body, error.status)

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        piece = Piece((), 0)
        try:
            async for piece in self._answer.pieces():
                await _write(send, event(self._body.chunk(piece)))
            if self._answer.call.usage.include_usage:
                await _write(send, event(self._body.usage_chunk(piece)))
        except AnswerFailed as exc:
            await _write(send, event(failure(exc).body))
        await _write(send, DONE, is_last=True)


class RefusedStream:
    """A stream that the engine refused after its status had been sent."""

    def __init__(self, error: WireError) -> None:
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        await _write(send, event(self._error.body))
        await _write(send, DONE, is_last=True)


async def _write(send: Send, body: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


def event(data: Json) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def failure(exc: AnswerFailed) -> WireError:
    return WireError(str(exc), status=HTTPStatus.INTERNAL_SERVER_ERROR, kind="InternalServerError")
