"""Where an HTTP/1.1 answer's head ends and its body ends: RFC 9112 sections 2 to 7 as a client needs them.

Bytes in, cut anywhere; heads, payload and ends out. Knows no socket. Everything that is not HTTP is a NotHTTP.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024  # a chunk's size with its extensions, or a trailer

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]


class NotHTTP(ValueError):
    """The server sent something else."""


@dataclass(frozen=True, slots=True)
class Head:
    """An answer's status and header fields; names in lower case, values without the space around them."""

    status: int
    fields: Fields
    is_http11: bool = True

    def find(self, name: bytes) -> bytes | None:
        return next((value for field, value in self.fields if field == name), None)

    @property
    def is_final(self) -> bool:
        """A 1xx only announces the answer."""
        return self.status >= 200

    @property
    def keeps_open(self) -> bool:
        connection = (self.find(b"connection") or b"").lower()
        return b"close" not in connection if self.is_http11 else b"keep-alive" in connection

    def body(self) -> "Body":
        """How the body that follows is framed. Raises NotHTTP."""
        encoding = self.find(b"transfer-encoding")
        if self.status in {204, 304}:
            return Sized(0)
        if encoding is not None:
            return Chunked() if encoding.lower().endswith(b"chunked") else Endless()
        length = self.find(b"content-length")
        if length is None:
            return Endless()
        if not length.isdigit():
            raise NotHTTP("content-length")
        return Sized(int(length))


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """The head and what follows it; None while it is incomplete. Raises NotHTTP."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
            raise NotHTTP("head")
        return None
    return _parse_head(data[:end]), data[end + 4 :]


def _parse_head(block: bytes) -> Head:
    status_line, *lines = block.split(b"\r\n")
    version, _, rest = status_line.partition(b" ")
    # 101 would switch to a protocol that nobody asked for.
    if version not in {b"HTTP/1.1", b"HTTP/1.0"} or not rest[:3].isdigit() or len(rest) < 3 or rest[:3] == b"101":
        raise NotHTTP("status line")
    # A bare CR or LF inside a value would begin a header, or an answer, of its own in what is passed on.
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines):
        raise NotHTTP("line ends")
    return Head(int(rest[:3]), tuple([_parse_field(line) for line in lines]), version == b"HTTP/1.1")


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name[:1].isspace() or name[-1:].isspace():
        raise NotHTTP("header field")
    return name.lower(), value.strip()


class Body(Protocol):
    """The body of one answer, fed as it comes. `ends_with_connection`: nothing else tells its end."""

    is_complete: bool
    ends_with_connection: bool

    def feed(self, data: bytes, payload: list[bytes] | None) -> int:
        """How many bytes of `data` are the body's; fewer than all only once it is complete. Raises NotHTTP.

        Appends to `payload` what they carry, unless the caller passes the body on as it is framed.
        """
        ...


class Sized:
    """As many bytes as content-length says."""

    __slots__ = ("_left", "ends_with_connection", "is_complete")

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_complete = length == 0
        self.ends_with_connection = False

    def feed(self, data: bytes, payload: list[bytes] | None) -> int:
        used = min(self._left, len(data))
        self._left -= used
        self.is_complete = self._left == 0
        if payload is not None and used:
            payload.append(data if used == len(data) else data[:used])
        return used


class Endless:
    """Everything until the connection ends."""

    __slots__ = ("ends_with_connection", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self.ends_with_connection = True

    def feed(self, data: bytes, payload: list[bytes] | None) -> int:
        if payload is not None and data:
            payload.append(data)
        return len(data)


class Chunked:
    """Chunks, each after a line with its size; a chunk of size 0 and trailers end it."""

    __slots__ = ("_has_ended", "_left", "_line", "ends_with_connection", "is_complete")

    def __init__(self) -> None:
        self._left = 0  # bytes of the present chunk yet to come, its final CRLF included
        self._line = b""  # the beginning of a line that is not complete
        self._has_ended = False  # the last chunk has come, trailers have not
        self.is_complete = False
        self.ends_with_connection = False

    def feed(self, data: bytes, payload: list[bytes] | None) -> int:
        before = len(self._line)
        if before:
            data, self._line = self._line + data, b""
        position, end, left = 0, len(data), self._left
        while position < end and not self.is_complete:
            if left:
                start, position = position, min(position + left, end)
                if payload is not None and left > 2:
                    payload.append(data[start : min(start + left - 2, end)])
                left -= position - start
                if not left and data[position - 1] != 10:  # LF
                    raise NotHTTP("end of chunk")
                continue
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._keep(data[position:])
                break
            left = self._read_line(data[position:line_end])
            position = line_end + 2
        self._left = left
        return (position if self.is_complete else end) - before

    def _keep(self, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise NotHTTP("chunk size")
        self._line = line

    def _read_line(self, line: bytes) -> int:
        """How many bytes follow before the next line."""
        if self._has_ended:  # a trailer, or the empty line after the last
            self.is_complete = not line
            return 0
        size = line.partition(b";")[0].strip() if b";" in line else line
        if not size.isalnum():
            raise NotHTTP("chunk size")
        try:
            length = int(size, 16)
        except ValueError as exc:
            raise NotHTTP("chunk size") from exc
        self._has_ended = not length
        return length + 2 if length else 0
