"""Finds the end of an HTTP/1.1 answer's head and of its body: RFC 9112 sections 2 to 7 for a client.

Bytes in, cut anywhere; heads, payload and ends out. Knows no socket. Raises NotHTTP for bytes that are not HTTP.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from gateway.header import KEPT_HEADS, MAX_KEPT_BYTES, Fields, find_length

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024  # a chunk's size with its extensions, or a trailer
MAX_SIZE_DIGITS = 16  # 64 bits: clients may read a longer number otherwise than we do
CRLF = b"\r\n"
# By a chunk's size line, for usual sizes, the length of its payload and two line ends. Faster than int(), which accepts
# "0x5" too.
USUAL_CHUNKS = {b"%x" % size: size + 4 for size in range(1, 2048)}
CR: Final = 0x0D
LF: Final = 0x0A
# By a whole chunk's length the size line that it starts with, b"" where no usual chunk has that length. Each length
# belongs to one size.
SIZE_LINES: Final = [b""] * (1 + max(len(size) + length for size, length in USUAL_CHUNKS.items()))
for _size, _length in USUAL_CHUNKS.items():
    SIZE_LINES[len(_size) + _length] = _size + CRLF
# Without 101, which would switch to a protocol that we did not ask for.
STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (?!101)([1-5][0-9]{2})(?: |\r|\Z)")
# A head with a line that is no field has fewer matches than lines.
FIELD = re.compile(rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n]*)")  # RFC 9110 5.6.2: a name is a token
UNSAFE = re.compile(rb"[\r\n\0]")
# What a line may be that has not arrived whole. Framing is passed on as it arrives, and a client that takes a bare LF
# for a line's end would find the end of an answer in it, and another answer after that.
PARTIAL_SIZE = re.compile(rb"[0-9A-Fa-f]*[ \t]*(?:;[^\r\n\0]*)?\r?")
PARTIAL_TRAILER = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+(?::[^\r\n\0]*)?)?\r?")
BODILESS = frozenset({204, 304})
# The `server` field of vLLM and trtllm-serve; its transports send every write at once (TCP_NODELAY).
UVICORN = b"uvicorn"
FRAMING_FIELDS = frozenset({b"content-type", b"connection", b"transfer-encoding", b"content-length", b"server"})


class NotHTTP(ValueError):
    """The server sent bytes that are not HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    """An answer's status and header fields; names in lower case, values without the space around them.

    Answers whose heads differ in their length alone share one Head, so `fields` may have another answer's length.
    `keeps_open`: the connection may carry another answer. `sends_at_once`: the server does not wait for
    acknowledgements.
    """

    status: int
    fields: Fields
    content_type: bytes
    is_chunked: bool
    keeps_open: bool
    sends_at_once: bool

    def body(self, length: int | None) -> "Body":
        """Returns a reader of the body, which has `length` bytes if that is known."""
        if self.is_chunked:
            return Chunked()
        return UntilClose() if length is None else Sized(length)


class _Framing:
    """The framing of a head's body, and whether the connection stays open. Pass each of FRAMING_FIELDS to `read`."""

    def __init__(self, *, is_http10: bool) -> None:
        self._closes = False
        self.keeps_open = not is_http10
        self.content_type = b""
        self.length: int | None = None
        self.is_chunked = False
        self.sends_at_once = False

    def read(self, name: bytes, value: bytes) -> None:
        if name == b"content-type":
            self.content_type = value.lower()
        elif name == b"connection":
            options = value.lower()
            self._closes = self._closes or b"close" in options
            self.keeps_open = not self._closes and (self.keeps_open or b"keep-alive" in options)
        elif name == b"transfer-encoding":
            # We offer no other coding, and the body would be passed on without the name of its coding.
            if value.lower() != b"chunked" or self.is_chunked:
                raise NotHTTP("transfer-encoding")
            self.is_chunked = True
        elif name == b"server":
            self.sends_at_once = value == UVICORN
        else:
            self._set_length(value)

    def _set_length(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > MAX_SIZE_DIGITS or self.length not in {None, int(value)}:
            raise NotHTTP("content-length")
        self.length = int(value)


def split_head(data: bytes) -> tuple[Head, int | None, bytes] | None:
    """Returns the head, its content-length if that frames the body, and the bytes after it.

    Returns None while the head is incomplete. A server's heads repeat: only a new head is parsed. Raises NotHTTP.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES or not data.startswith(b"HTTP/1."[: len(data)]):
            raise NotHTTP("head")
        return None
    if end > MAX_KEPT_BYTES:
        return *_parse_head(data[:end]), data[end + 4 :]
    if (place := find_length(data, end)) is not None:
        start, stop = place
        if (head := _parse_around(data[:start], data[stop:end])) is not None:
            return head, int(data[start:stop]), data[end + 4 :]
    return *_parse_kept(data[:end]), data[end + 4 :]


@lru_cache(maxsize=KEPT_HEADS)
def _parse_around(before: bytes, after: bytes) -> Head | None:
    """Parses heads that differ only in the length between the two parts; returns None if each needs its own parse."""
    if (before + after).lower().count(b"content-length") > 1:
        return None
    head, _ = _parse_head(before + b"0" + after)
    return None if head.is_chunked or head.status in BODILESS else head


def _parse_head(block: bytes) -> tuple[Head, int | None]:
    if (found := STATUS_LINE.match(block)) is None:
        raise NotHTTP("status line")
    lines = FIELD.findall(block)
    # A bare CR or LF inside a value would begin another field, or another answer, in the bytes that are passed on.
    if not len(lines) == block.count(CRLF) == block.count(b"\n") == block.count(b"\r") or b"\0" in block:
        raise NotHTTP("header field")
    fields = tuple([(name.lower(), value.strip()) for name, value in lines])
    is_http10 = found[1] == b"0"  # HTTP/1.0
    framing = _Framing(is_http10=is_http10)
    for name, value in fields:
        if name in FRAMING_FIELDS:
            framing.read(name, value)
    status, length, keeps_open = int(found[2]), framing.length, framing.keeps_open
    if status in BODILESS:
        length, framing.is_chunked = 0, False
    elif framing.is_chunked:  # overrides content-length; RFC 9112 6.1: both together may be an attempt to split answers
        keeps_open = keeps_open and length is None and not is_http10
        length = None
    head = Head(status, fields, framing.content_type, framing.is_chunked, keeps_open, framing.sends_at_once)
    return head, length


_parse_kept = lru_cache(maxsize=KEPT_HEADS)(_parse_head)


class Body(Protocol):
    """The body of one answer. `ends_with_connection`: only the connection's end marks its end."""

    is_complete: bool
    ends_with_connection: bool

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        """Appends the payload in `data` to `payload`. Raises NotHTTP.

        Returns how many bytes of `data` belong to the body; fewer than all only if the body is complete.
        """
        ...


class Sized:
    """A body of content-length bytes."""

    __slots__ = ("_left", "ends_with_connection", "is_complete")

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_complete = length == 0
        self.ends_with_connection = False

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        used = min(self._left, len(data))
        self._left -= used
        self.is_complete = self._left == 0
        if used:
            payload.append(data if used == len(data) else data[:used])
        return used


class UntilClose:
    """A body that ends with the connection."""

    __slots__ = ("ends_with_connection", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self.ends_with_connection = True

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        if data:
            payload.append(data)
        return len(data)


def measure_size_line(data: bytes) -> int:
    """Returns the length of the size line if `data` is one whole chunk of a usual size, else 0.

    It is made for compiled code: an index costs next to nothing, but a method of bytes costs a look-up and arguments.
    """
    length = len(data)
    if not 2 < length < len(SIZE_LINES):
        return 0
    line = SIZE_LINES[length]
    if data[length - 1] != LF or data[length - 2] != CR or data[: len(line)] != line:
        return 0
    return len(line)


class Chunked:
    """A body in chunks, each after a line with its size; a chunk of size 0 and trailers end it.

    `is_between_chunks`: the next byte is the first of a chunk, so a whole chunk need not be fed (`measure_size_line`).
    """

    __slots__ = ("_has_ended", "_left", "_line", "ends_with_connection", "is_between_chunks", "is_complete")

    def __init__(self) -> None:
        self.is_between_chunks = True
        self._left = 0  # missing bytes of the current chunk, its final CRLF included
        self._line = b""  # the beginning of an incomplete line
        self._has_ended = False  # the last chunk has arrived, the trailers have not
        self.is_complete = False
        self.ends_with_connection = False

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        before = len(self._line)
        if before:
            data, self._line = self._line + data, b""
        position, end, left = 0, len(data), self._left
        while position < end and not self.is_complete:
            if left:
                start, position = position, min(position + left, end)
                if left > 2:
                    payload.append(data[start : min(start + left - 2, end)])
                left -= position - start
                if left < 2 and not CRLF[: 2 - left].endswith(data[max(start, position - 2 + left) : position]):
                    raise NotHTTP("end of chunk")
                continue
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._keep_line(data[position:])
                break
            left = self._read_line(data[position:line_end])
            position = line_end + 2
        self._left = left
        self.is_between_chunks = not (left or self._line or self._has_ended)
        return (position if self.is_complete else end) - before

    def skip(self, data: bytes) -> int:
        """Does what `feed` does where chunks are passed on, at a third of the cost, as most reads are whole chunks."""
        position, end = 0, len(data)
        if self.is_between_chunks:
            while position < end:
                line_end = data.find(CRLF, position)
                length = USUAL_CHUNKS.get(data[position:line_end])
                if length is None or line_end < 0 or data[line_end + length - 2 : line_end + length] != CRLF:
                    break
                position = line_end + length
            if position == end:
                return end
        return position + self.feed(data[position:], [])

    def _keep_line(self, line: bytes) -> None:
        form = PARTIAL_TRAILER if self._has_ended else PARTIAL_SIZE
        if len(line) > MAX_LINE_BYTES or form.fullmatch(line) is None:
            raise NotHTTP("trailer" if self._has_ended else "chunk size")
        self._line = line

    def _read_line(self, line: bytes) -> int:
        """Returns how many bytes follow before the next line."""
        if self._has_ended:  # a trailer, or the empty line after the last
            self.is_complete = not line
            _check_trailer(line)
            return 0
        size = _cut_extension(line) if b";" in line else line
        if not size.isalnum() or len(size) > MAX_SIZE_DIGITS:
            raise NotHTTP("chunk size")
        try:
            length = int(b"0x" + size, 16)  # int() would let another 0x pass
        except ValueError as exc:
            raise NotHTTP("chunk size") from exc
        self._has_ended = not length
        return length + 2 if length else 0


def _cut_extension(line: bytes) -> bytes:
    if UNSAFE.search(line):
        raise NotHTTP("chunk extension")
    return line.partition(b";")[0].rstrip(b" \t")


def _check_trailer(line: bytes) -> None:
    if line and (FIELD.fullmatch(CRLF + line) is None or b"\0" in line):
        raise NotHTTP("trailer")
