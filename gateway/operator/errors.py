"""Errors of the operator's routes in OpenAI's form: {"error": {message, type, param, code}}.

In: a GatewayError, a body that pydantic refused, or Starlette's own 404 and 405. Out: JSON that names the field.
"""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, InvalidRequest

WORDS = {
    "extra_forbidden": "unknown field",
    "unexpected_keyword_argument": "unknown field",  # of a policy's keys
    "missing": "required",
    "json_invalid": "the body is not valid JSON",
}


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(GatewayError, _answer_gateway_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_body)
    app.add_exception_handler(HTTPException, _answer_http_error)


def _answer(status: int, kind: str, code: str, message: str, param: str | None = None) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    error = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": error}, status, headers)


def make_answer(error: GatewayError) -> JSONResponse:
    return _answer(error.status, error.type, error.code, error.message, error.param)


async def _answer_gateway_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GatewayError)  # Starlette types every handler's argument as Exception
    return make_answer(error)


async def _answer_invalid_body(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # loc is ("body", "up") or ("query", "model"); for malformed JSON it is ("body", <offset>).
    is_malformed = first["type"] == "json_invalid"
    param = None if is_malformed else ".".join(str(part) for part in first["loc"][1:]) or None
    message = WORDS.get(first["type"], first["msg"])
    return await _answer_gateway_error(
        request, InvalidRequest(f"{param}: {message}" if param else message, param=param)
    )


async def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _answer(error.status_code, "invalid_request_error", code, message)
