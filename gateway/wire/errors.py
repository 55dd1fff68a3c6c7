"""A GatewayError in, a wire's error out: a JSON body with its header fields, or the last event of a stream."""

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """One wire's errors. `body`: takes the error and the request's id. `event`: what a stream ends with."""

    body: Callable[[GatewayError, str], bytes]
    event: Callable[[GatewayError], bytes]


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    match error:
        case Overloaded():
            return [(b"retry-after", b"%d" % error.retry_after_s), *error.fields]
        case BackendUnavailable() | ShuttingDown():
            return [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        case MethodNotAllowed():
            return [(b"allow", error.allowed.encode())]
        case BodyTooLarge() | RequestTimeout():  # the rest of the body is still on its way, and nobody will read it
            return [(b"connection", b"close")]
        case Unauthorized():
            return [(b"www-authenticate", b"Bearer")]
    return []
