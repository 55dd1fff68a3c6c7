"""How a gRPC call ended, and what HTTP/2 and HTTP say about it in gRPC's terms.

The tables are gRPC's own: doc/PROTOCOL-HTTP2.md and doc/http-grpc-status-mapping.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote_to_bytes

from gateway.backends.rpc.h2_frames import ErrorCode


class Status(IntEnum):
    """gRPC's status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. `detail` may hold a server's own words. `is_sent`: the whole request had gone out before."""

    status: Status
    detail: str = ""
    is_sent: bool = True


OF_RESET = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
    ErrorCode.STREAM_CLOSED: Status.UNKNOWN,
}

OF_HTTP = {
    b"400": Status.INTERNAL,
    b"401": Status.UNAUTHENTICATED,
    b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED,
    b"429": Status.UNAVAILABLE,
    b"502": Status.UNAVAILABLE,
    b"503": Status.UNAVAILABLE,
    b"504": Status.UNAVAILABLE,
}

NUMBERS = {str(int(status)).encode(): status for status in Status}


def of_reset(code: int) -> Status:
    """What RST_STREAM with this error code means."""
    try:
        return OF_RESET.get(ErrorCode(code), Status.INTERNAL)
    except ValueError:
        return Status.UNKNOWN


def of_http(status: bytes) -> Status:
    """What an HTTP status without any grpc-status means."""
    return OF_HTTP.get(status, Status.UNKNOWN)


def of_trailers(fields: Mapping[bytes, bytes], http_status: bytes) -> tuple[Status, str]:
    """Status and decoded grpc-message of a call that ended with these header fields."""
    number = fields.get(b"grpc-status")
    if number is None:
        return of_http(http_status), f"no grpc-status, HTTP status {http_status.decode('latin-1')}"
    message = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
    return NUMBERS.get(number, Status.UNKNOWN), message
