"""Every fault between the gateway and an engine: what does it, on which wire, and what a client may see of it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.faults.proxy import (
    BlackHole,
    Canned,
    Drip,
    Fault,
    Garbage,
    HalfClose,
    Reset,
    Rewritten,
    Silence,
    WrongFrames,
)

BOTH = ("triton", "vllm")
BEGUN = 100  # bytes of an answer after which a fault comes
CHUNKED, SIZE = rb"(?i)transfer-encoding: chunked", rb"(?:^|(?<=\r\n))([0-9a-f]{1,4})(?=\r\n)"


@dataclass(frozen=True, slots=True)
class Row:
    """A canned answer reaches begun streams too, in which it is garbage.

    `is_left`: the engine gets no requests until it is well. `sees`: the codes of errors that begun streams which may
    not move end with; all other requests are answered. `is_slow`: left to `make slow`,
    since all rows together take minutes.
    """

    name: str
    wire: str
    fault: Callable[[], Fault]
    is_left: bool = True
    sees: frozenset[str] = frozenset()
    is_slow: bool = False

    def __str__(self) -> str:
        return f"{self.wire}: {self.name}"


def canned(line: str, fields: str, body: str) -> Callable[[], Fault]:
    return lambda: Canned(f"HTTP/1.1 {line}\r\n{fields}\r\n\r\n{body}".encode())


def status(line: str) -> Callable[[], Fault]:
    body = '{"error":{"message":"broken"}}'
    return canned(line, f"content-type: application/json\r\ncontent-length: {len(body)}", body)


def on_both(
    name: str, fault: Callable[[], Fault], *sees: str, is_left: bool = True, slow: tuple[str, ...] = ()
) -> list[Row]:
    return [Row(name, wire, fault, is_left, frozenset(sees), wire in slow) for wire in BOTH]


def on(wire: str, name: str, fault: Callable[[], Fault], *sees: str, is_slow: bool = False) -> Row:
    return Row(name, wire, fault, sees=frozenset(sees), is_slow=is_slow)


PROTOCOL = ("backend_lost", "backend_protocol_error", "backend_error")
SILENT = ("backend_lost", "backend_timeout")
ROWS = (
    *on_both("connections reset", Reset, "backend_lost"),
    *on_both("a black hole", BlackHole, *SILENT, slow=("triton",)),
    *on_both("silence within answers", lambda: Silence(BEGUN), *SILENT, slow=BOTH),
    *on_both("answers half closed", lambda: HalfClose(BEGUN), "backend_lost", slow=("vllm",)),
    *on_both("a drip", Drip, is_left=False),
    *on_both("garbage", Garbage, *PROTOCOL),
    *on_both("garbage within answers", lambda: Garbage(BEGUN), *PROTOCOL, slow=BOTH),
    on("vllm", "status 500", status("500 Internal Server Error"), "backend_protocol_error"),
    Row("status 503", "vllm", status("503 Service Unavailable"), False, frozenset(PROTOCOL)),  # it may be full
    on(
        "vllm", "a body shorter than its content-length", canned("200 OK", "content-length: 999", "data: {}"), *PROTOCOL
    ),
    on("vllm", "a body longer than its content-length", lambda: Rewritten(CHUNKED, b"content-length: 20"), *PROTOCOL),
    # What lies between events is skipped, and the last event ends the answer.
    Row("chunks shorter than their sizes", "vllm", lambda: Rewritten(SIZE, rb"f\1"), is_left=False),
    on("vllm", "chunks longer than their sizes", lambda: Rewritten(SIZE, b"9"), *PROTOCOL, is_slow=True),
    on("vllm", "chunks without sizes", lambda: Rewritten(SIZE, b"?"), *PROTOCOL),
    on("triton", "messages shorter than their lengths", lambda: WrongFrames(3), *PROTOCOL),
    on("triton", "messages longer than their lengths", lambda: WrongFrames(-3), *PROTOCOL),
    on("triton", "frames longer than their lengths", lambda: WrongFrames(-3, of_frames=True), *PROTOCOL),
    on("triton", "frames longer than is allowed", lambda: WrongFrames(1 << 20, of_frames=True), *PROTOCOL),
)


def params() -> list[object]:
    return [pytest.param(row, marks=[pytest.mark.slow] if row.is_slow else [], id=str(row)) for row in ROWS]
