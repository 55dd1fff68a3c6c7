"""A GatewayError in, OpenAI's error out: a JSON body with its header fields, or the last event of a stream."""

import orjson

from gateway.errors import (
    BackendUnavailable,
    BodyTooLarge,
    GatewayError,
    MethodNotAllowed,
    Overloaded,
    RequestTimeout,
    ShuttingDown,
    Unauthorized,
)

RETRY_AFTER_S = 1


def error_body(error: GatewayError) -> bytes:
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return orjson.dumps({"error": fields})


def error_event(error: GatewayError) -> bytes:
    """Returns the last event, no [DONE]: openai-python raises on `error`; a client that ignores it sees no success."""
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
