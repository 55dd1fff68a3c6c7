"""HTTP header fields and which of them go on beyond a connection (RFC 9110 7.6.1). Knows no message."""

from typing import TypeAlias

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]  # names in lower case, values without the space around them
Lines: TypeAlias = tuple[bytes, ...]  # the same as they go on the wire, without line ends

# These speak of one connection, or of a body's framing there, and not of the message.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"http2-settings", b"content-length", b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info",
})  # fmt: skip
USUAL_OPTIONS = frozenset({b"keep-alive", b"close"})

make_line = b": ".join

# Heads that differ in their length alone are kept under the bytes on either side of its digits (decision 0012): so many
# of each kind, and none longer than this.
LENGTH, LENGTH_AS_TITLE = b"\r\ncontent-length: ", b"\r\nContent-Length: "
MOST_DIGITS = 15
KEPT_HEADS = 256
MAX_KEPT_BYTES = 4 * 1024


def end_to_end(fields: Fields, dropped: frozenset[bytes]) -> Lines:
    """What goes on: neither hop by hop, nor named by Connection, nor in `dropped`."""
    dropped |= HOP_BY_HOP
    for name, value in fields:
        if name == b"connection" and value.lower() not in USUAL_OPTIONS:
            dropped |= {option.strip().lower() for option in value.split(b",")}
    return tuple([make_line(field) for field in fields if field[0] not in dropped])


def find_length(data: bytes, end: int) -> tuple[int, int] | None:
    """Where the digits of a content-length stand in the head that ends at `end`; None: it has none, or an unusual one.

    By hand: a pattern in its place would take a microsecond more, twice for every request.
    """
    at = data.find(LENGTH, 0, end)
    if at < 0 and (at := data.find(LENGTH_AS_TITLE, 0, end)) < 0:
        return None
    start = at + len(LENGTH)
    stop = data.find(b"\r\n", start)
    return (start, stop) if stop - start <= MOST_DIGITS and data[start:stop].isdigit() else None
