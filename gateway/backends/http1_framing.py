"""Where an HTTP/1.1 answer's head ends and its body ends: RFC 9112 sections 2 to 7 as a client needs them.

Bytes in, cut anywhere; heads, payload and ends out. Knows no socket. Everything that is not HTTP is a NotHTTP.
"""

from typing import Protocol

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024  # a chunk's size with its extensions, or a trailer
SPACE = 0x20
FRAMING = frozenset({b"content-type", b"connection", b"transfer-encoding", b"content-length"})


class NotHTTP(ValueError):
    """The server sent something else."""


class Head:
    """An answer's status and header fields; names in lower case, values without the space around them.

    `length`: content-length, if that is what frames the body. `keeps_open`: the connection may carry another answer.
    """

    __slots__ = ("content_type", "fields", "is_chunked", "keeps_open", "length", "status")

    def __init__(self, status: int, *, keeps_open: bool) -> None:
        self.status = status
        self.fields: list[tuple[bytes, bytes]] = []
        self.keeps_open = keeps_open
        self.content_type = b""
        self.length: int | None = 0 if status in {204, 304} else None
        self.is_chunked = False

    def add(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))
        if name not in FRAMING:
            return
        if name == b"content-type":
            self.content_type = value
        elif name == b"connection":
            self.keeps_open = b"close" not in value.lower() and (self.keeps_open or b"keep-alive" in value.lower())
        elif name == b"transfer-encoding":
            self.is_chunked = value.lower().endswith(b"chunked")
        else:
            self._set_length(value)

    def body(self) -> "Body":
        """How the body that follows is framed."""
        if self.is_chunked:  # it overrules content-length
            self.length = None
            return Chunked()
        return Endless() if self.length is None else Sized(self.length)

    def _set_length(self, value: bytes) -> None:
        if not value.isdigit():
            raise NotHTTP("content-length")
        if self.status not in {204, 304}:
            self.length = int(value)


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """The head and what follows it; None while it is incomplete. Raises NotHTTP."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES or not data.startswith(b"HTTP/1."[: len(data)]):
            raise NotHTTP("head")
        return None
    return _parse_head(data[:end]), data[end + 4 :]


def _parse_head(block: bytes) -> Head:
    status_line, *lines = block.split(b"\r\n")
    version, code = status_line[:9], status_line[9:12]
    # 101 would switch to a protocol that nobody asked for.
    if version not in {b"HTTP/1.1 ", b"HTTP/1.0 "} or not code.isdigit() or len(code) < 3 or code == b"101":
        raise NotHTTP("status line")
    # A bare CR or LF inside a value would begin a header, or an answer, of its own in what is passed on.
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines):
        raise NotHTTP("line ends")
    head = Head(int(code), keeps_open=version == b"HTTP/1.1 ")
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name[0] <= SPACE or name[-1] <= SPACE:
            raise NotHTTP("header field")
        head.add(name.lower(), value.strip())
    return head


class Body(Protocol):
    """The body of one answer, fed as it comes. `ends_with_connection`: nothing else tells its end."""

    is_complete: bool
    ends_with_connection: bool

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        """How many bytes of `data` are the body's; fewer than all only once it is complete. Raises NotHTTP.

        Appends to `payload` what they carry.
        """
        ...


class Sized:
    """As many bytes as content-length says."""

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


class Endless:
    """Everything until the connection ends."""

    __slots__ = ("ends_with_connection", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self.ends_with_connection = True

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        if data:
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

    def skip(self, data: bytes) -> int:
        """As `feed` for a caller who passes the chunks on, at a third of its cost: most reads bring whole ones."""
        if self._line or self._has_ended:
            return self.feed(data, [])
        position, end = self._left, len(data)
        while position < end:
            line_end = data.find(b"\r\n", position)
            try:
                length = int(data[position:line_end], 16) if line_end > 0 else 0
            except ValueError:  # an extension, perhaps
                length = 0
            if length <= 0:
                self._left = 0
                return position + self.feed(data[position:], [])
            position = line_end + length + 4
        self._left = position - end
        return end

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
