"""A GatewayError in, Anthropic's error out: a JSON body, or the last event of a stream."""

from collections.abc import Mapping

import orjson

from gateway.errors import ContextLengthExceeded, GatewayError
from gateway.wire.errors import ErrorForm

# https://platform.claude.com/docs/en/api/errors
TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: GatewayError, request_id: str) -> bytes:
    return orjson.dumps({"type": "error", "error": _describe(error), "request_id": request_id})


def error_event(error: GatewayError) -> bytes:
    return b"event: error\ndata: " + orjson.dumps({"type": "error", "error": _describe(error)}) + b"\n\n"


def _describe(error: GatewayError) -> Mapping[str, str]:
    message = error.message
    if isinstance(error, ContextLengthExceeded):
        message = f"prompt is too long: {message}"  # the words by which clients know that a chat has to be shortened
    return {"type": TYPES.get(error.status, "api_error"), "message": message}


ANTHROPIC_ERRORS = ErrorForm(error_body, error_event)
