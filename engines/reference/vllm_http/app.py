"""The routes: vLLM's paths, each a translation from an HTTP request to the model and back."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import generate_latest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engines.reference.vllm_http import pooling
from engines.reference.vllm_http.admission import admit
from engines.reference.vllm_http.answer import AnswerInFlight
from engines.reference.vllm_http.errors import SCALE_OUT_OFF, WireError, bad_request
from engines.reference.vllm_http.metrics import make_registry
from engines.reference.vllm_http.reply import RefusedStream, Reply
from engines.reference.vllm_http.requests import GenerateCall, check_model, parse_completion, parse_generate, validate
from engines.reference.vllm_http.responses import CompletionResponse, GenerateResponse, ResponseBody
from engines.reference.vllm_http.served import ServedModel

VERSION = "0.32.0+reference"  # this wire behaves as that release
Endpoint = Callable[[Request], Awaitable[ASGIApp]]


class TokenizeBody(BaseModel):
    model: str | None = None
    prompt: str
    return_token_strs: bool | None = False


class DetokenizeBody(BaseModel):
    model: str | None = None
    tokens: list[int]


class Routes:
    """The endpoints as methods; `application` puts them behind their paths."""

    def __init__(self, model: ServedModel, *, scales_out: bool) -> None:
        self._model = model
        self._scales_out = scales_out
        self._metrics = make_registry(model)
        self._created = int(time.time())

    async def completions(self, request: Request) -> ASGIApp:
        call = parse_completion(await read_json(request), self._model, request.headers.get("x-request-id"))
        return self._reply(call, CompletionResponse)

    async def generate(self, request: Request) -> ASGIApp:
        self._check_scale_out()
        call = parse_generate(await read_json(request), self._model, request.headers.get("x-request-id"))
        return self._reply(call, GenerateResponse)

    async def abort_requests(self, request: Request) -> ASGIApp:
        self._check_scale_out()
        body = await read_json(request)
        if not isinstance(body, dict) or body.get("request_ids") is None:
            raise WireError("Missing 'request_ids' in request body", kind="Bad Request")
        for request_id in body["request_ids"]:
            answer = self._model.answers.get(request_id)
            if answer is not None:
                answer.abort()
        return Response()

    async def models(self, request: Request) -> ASGIApp:
        card = {
            "id": self._model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": str(self._model.directory),
            "parent": None,
            "max_model_len": self._model.max_model_len,
            "permission": [],
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def tokenize(self, request: Request) -> ASGIApp:
        body = validate(TokenizeBody, await read_json(request))
        check_model(body.model, self._model)
        ids = self._model.encode(body.prompt)
        return JSONResponse({
            "count": len(ids),
            "max_model_len": self._model.max_model_len,
            "tokens": ids,
            "token_strs": self._model.token_strings(ids) if body.return_token_strs else None,
        })

    async def detokenize(self, request: Request) -> ASGIApp:
        body = validate(DetokenizeBody, await read_json(request))
        check_model(body.model, self._model)
        return JSONResponse({"prompt": self._model.decode(body.tokens)})

    def pooling(self, answer: Callable[[object, ServedModel], dict[str, Any]]) -> Endpoint:
        async def respond(request: Request) -> ASGIApp:
            return JSONResponse(answer(await read_json(request), self._model))

        return respond

    async def health(self, request: Request) -> ASGIApp:
        return Response(status_code=200 if self._model.runner.is_alive else 503)

    async def version(self, request: Request) -> ASGIApp:
        return JSONResponse({"version": VERSION})

    async def metrics(self, request: Request) -> ASGIApp:
        return Response(generate_latest(self._metrics), media_type="text/plain; version=1.0.0; charset=utf-8")

    def _reply(self, call: GenerateCall, body: Callable[[GenerateCall, ServedModel], ResponseBody]) -> ASGIApp:
        call = admit(call, self._model)
        if call.refusal is not None:
            return RefusedStream(call.refusal)
        return Reply(AnswerInFlight(call, self._model), body(call, self._model))

    def _check_scale_out(self) -> None:
        if not self._scales_out:
            raise SCALE_OUT_OFF


def application(model: ServedModel, *, scales_out: bool) -> Starlette:
    routes = Routes(model, scales_out=scales_out)
    return Starlette(
        routes=[
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/inference/v1/generate", routes.generate, methods=["POST"]),
            Route("/inference/v1/abort_requests", routes.abort_requests, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/tokenize", routes.tokenize, methods=["POST"]),
            Route("/detokenize", routes.detokenize, methods=["POST"]),
            Route("/v1/embeddings", routes.pooling(pooling.embeddings), methods=["POST"]),
            Route("/v1/score", routes.pooling(pooling.score), methods=["POST"]),
            Route("/v1/rerank", routes.pooling(pooling.rerank), methods=["POST"]),
            Route("/health", routes.health),
            Route("/version", routes.version),
            Route("/metrics", routes.metrics),
        ],
        exception_handlers={WireError: show_error, HTTPException: show_unrouted},
    )


async def read_json(request: Request) -> Any:  # any JSON value
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise bad_request("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        return json.loads(await request.body())
    except json.JSONDecodeError as exc:
        raise bad_request(f"JSON decode error: {exc.msg}", f"body.{exc.pos}") from exc


async def show_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, WireError)
    return JSONResponse(exc.body, exc.status)


async def show_unrouted(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    return JSONResponse({"detail": exc.detail}, exc.status_code, exc.headers)
