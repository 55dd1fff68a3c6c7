"""HTTP/2's frames (RFC 9113): their numbers, and functions that make frames. Pure; knows no connection."""

import struct
from collections.abc import Mapping
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types. Plain numbers, since one is compared per frame, and comparing enum members is slow.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

# Flags. ACK belongs to SETTINGS and PING.
END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
HAS_PRIORITY = 0x20

HEAD = struct.Struct(">BHBBL")  # length (24 bits), type, flags, reserved bit and stream id
HEAD_BYTES = HEAD.size
SETTING = struct.Struct(">HL")
NUMBER = struct.Struct(">L")
GOAWAY_HEAD = struct.Struct(">LL")

STREAM_ID_MASK = MAX_STREAM_ID = MAX_WINDOW = 0x7FFFFFFF
DEFAULT_WINDOW = 65_535
SMALLEST_MAX_FRAME, LARGEST_MAX_FRAME = 16_384, 16_777_215


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Violation(Exception):
    """The peer broke HTTP/2's rules, and nothing after this can be parsed."""

    def __init__(self, code: ErrorCode, what: str) -> None:
        super().__init__(what)
        self.code = code


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(kind, flags, stream_id, len(payload)) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, NUMBER.pack(increment))


def reset(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, NUMBER.pack(code))


def goaway(code: ErrorCode) -> bytes:
    """Returns a client's GOAWAY: its last stream id is 0, since the server opens no streams."""
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(0, code))


def without_padding(flags: int, payload: bytes) -> bytes:
    """Returns the payload of a DATA or HEADERS frame without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Violation(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
