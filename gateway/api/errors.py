"""A GatewayError in, OpenAI's error body out, as a JSON answer or as the last event of a stream.

Also the failures that only HTTP knows, which is why they are not in the taxonomy of gateway/errors.py.
"""

import orjson

from gateway.errors import BackendUnavailable, GatewayError, Overloaded, Unauthorized

RETRY_AFTER_S = 1


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class HeadTooLarge(GatewayError):
    status = 431
    type = "invalid_request_error"
    code = "request_head_too_large"


class RequestTimeout(GatewayError):
    """A head or a body that does not arrive in time; official clients send it again."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class PathNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, allowed: str, message: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class ShuttingDown(GatewayError):
    """Not BackendUnavailable: there is nowhere else to try."""

    status = 503
    type = "overloaded_error"
    code = "shutting_down"


OUR_FAULT = "The gateway failed; see its log for this request's id."


class InternalError(GatewayError):
    """A fault of the gateway itself; the cause goes to the log, never to the client."""


def error_body(error: GatewayError) -> bytes:
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return orjson.dumps({"error": fields})


def error_event(error: GatewayError) -> bytes:
    """No [DONE] follows: openai-python raises on `error`, and a client that ignores it must not read success."""
    return b"data: " + error_body(error) + b"\n\n"


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    match error:
        case Overloaded() | BackendUnavailable() | ShuttingDown():
            return [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        case MethodNotAllowed():
            return [(b"allow", error.allowed.encode())]
        case BodyTooLarge() | RequestTimeout():  # the rest of the body is still on its way, and nobody will read it
            return [(b"connection", b"close")]
        case Unauthorized():
            return [(b"www-authenticate", b"Bearer")]
    return []
