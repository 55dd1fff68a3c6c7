"""Where an HTTP/1.1 answer's head ends and its body ends: RFC 9112 sections 2 to 7 as a client needs them.

Bytes in, cut anywhere; heads, payload and ends out. Knows no socket. Everything that is not HTTP is a NotHTTP.
"""

import re
from typing import Protocol

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024  # a chunk's size with its extensions, or a trailer
MAX_SIZE_DIGITS = 16  # 64 bits: beyond them whoever reads what is passed on may count differently
CRLF = b"\r\n"
# From a chunk's size to its length with the two line ends, for usual sizes: quicker than int(), which also takes "0x5".
USUAL_CHUNKS = {b"%x" % size: size + 4 for size in range(1, 2048)}
# 101 would switch to a protocol that nobody asked for.
STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (?!101)([1-5][0-9]{2})(?: |\r|\Z)")
# A line that is no field leaves fewer of them than lines.
FIELD = re.compile(rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n]*)")  # RFC 9110 5.6.2: a name is a token
UNSAFE = re.compile(rb"[\r\n\0]")
BODILESS = frozenset({204, 304})
FRAMING = frozenset({b"content-type", b"connection", b"transfer-encoding", b"content-length"})


class NotHTTP(ValueError):
    """The server sent something else."""


class Head:
    """An answer's status and header fields; names in lower case, values without the space around them.

    `length`: content-length, if that is what frames the body. `keeps_open`: the connection may carry another answer.
    """

    __slots__ = ("_closes", "_is_old", "content_type", "fields", "is_chunked", "keeps_open", "length", "status")

    def __init__(self, status: int, *, is_old: bool) -> None:
        self.status = status
        self.fields: list[tuple[bytes, bytes]] = []
        self._is_old = is_old  # HTTP/1.0
        self._closes = False
        self.keeps_open = not is_old
        self.content_type = b""
        self.length: int | None = None
        self.is_chunked = False

    def note(self, name: bytes, value: bytes) -> None:
        """Take up a field of FRAMING."""
        if name == b"content-type":
            self.content_type = value.lower()
        elif name == b"connection":
            options = value.lower()
            self._closes = self._closes or b"close" in options
            self.keeps_open = not self._closes and (self.keeps_open or b"keep-alive" in options)
        elif name == b"transfer-encoding":
            # We offer no other coding, and one that we do not know would be passed on without its name.
            if value.lower() != b"chunked" or self.is_chunked:
                raise NotHTTP("transfer-encoding")
            self.is_chunked = True
        else:
            self._set_length(value)

    def body(self) -> "Body":
        """How the body that follows is framed; to be asked once, when all fields are there."""
        if self.status in BODILESS:
            self.length, self.is_chunked = 0, False
        elif self.is_chunked:  # it overrules content-length; RFC 9112 6.1: somebody may be trying to split answers
            self.keeps_open = self.keeps_open and self.length is None and not self._is_old
            self.length = None
            return Chunked()
        return Endless() if self.length is None else Sized(self.length)

    def _set_length(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > MAX_SIZE_DIGITS or self.length not in {None, int(value)}:
            raise NotHTTP("content-length")
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
    if (found := STATUS_LINE.match(block)) is None:
        raise NotHTTP("status line")
    fields = FIELD.findall(block)
    lines = block.count(CRLF)
    # A bare CR or LF inside a value would begin a header, or an answer, of its own in what is passed on.
    if not len(fields) == lines == block.count(b"\n") == block.count(b"\r") or b"\0" in block:
        raise NotHTTP("header field")
    head = Head(int(found[2]), is_old=found[1] == b"0")
    head.fields = fields = [(name.lower(), value.strip()) for name, value in fields]
    for name, value in fields:
        if name in FRAMING:
            head.note(name, value)
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

    __slots__ = ("_has_ended", "_is_between", "_left", "_line", "ends_with_connection", "is_complete")

    def __init__(self) -> None:
        self._is_between = True  # a chunk's first byte is next
        self._left = 0  # bytes of the present chunk yet to come, its final CRLF included
        self._line = b""  # the beginning of a line that is not complete
        self._has_ended = False  # the last chunk has come, trailers have not
        self.is_complete = False
        self.ends_with_connection = False

    def feed(self, data: bytes, payload: list[bytes]) -> int:
        if not (self._left or self._line or self._has_ended):
            # A read that is one whole chunk, as nearly all are that bring a token.
            start = data.find(CRLF) + 2
            if start + USUAL_CHUNKS.get(data[: start - 2], 0) - 2 == len(data) and data.endswith(CRLF):
                payload.append(data[start:-2])
                return len(data)
        return self._feed(data, payload)

    def _feed(self, data: bytes, payload: list[bytes]) -> int:
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
                self._keep(data[position:])
                break
            left = self._read_line(data[position:line_end])
            position = line_end + 2
        self._left = left
        self._is_between = not (left or self._line or self._has_ended)
        return (position if self.is_complete else end) - before

    def skip(self, data: bytes) -> int:
        """As `feed` for a caller who passes the chunks on, at a third of its cost: most reads bring whole ones."""
        position, end = 0, len(data)
        if self._is_between:
            while position < end:
                line_end = data.find(CRLF, position)
                length = USUAL_CHUNKS.get(data[position:line_end])
                if length is None or line_end < 0 or data[line_end + length - 2 : line_end + length] != CRLF:
                    break
                position = line_end + length
            if position == end:
                return end
        return position + self.feed(data[position:], [])

    def _keep(self, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise NotHTTP("chunk size")
        self._line = line

    def _read_line(self, line: bytes) -> int:
        """How many bytes follow before the next line."""
        if self._has_ended:  # a trailer, or the empty line after the last
            self.is_complete = not line
            _check_trailer(line)
            return 0
        size = _before_extension(line) if b";" in line else line
        if not size.isalnum() or len(size) > MAX_SIZE_DIGITS:
            raise NotHTTP("chunk size")
        try:
            length = int(b"0x" + size, 16)  # int() would let another 0x pass
        except ValueError as exc:
            raise NotHTTP("chunk size") from exc
        self._has_ended = not length
        return length + 2 if length else 0


def _before_extension(line: bytes) -> bytes:
    if UNSAFE.search(line):
        raise NotHTTP("chunk extension")
    return line.partition(b";")[0].rstrip(b" \t")


def _check_trailer(line: bytes) -> None:
    if line and (FIELD.fullmatch(CRLF + line) is None or b"\0" in line):
        raise NotHTTP("trailer")
