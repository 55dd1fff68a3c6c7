"""HTTP header fields, and which of them a gateway passes on (RFC 9110 7.6.1). Knows no message."""

from collections.abc import Mapping
from hashlib import sha256
from typing import TypeAlias

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]  # names in lower case, values without the space around them
Lines: TypeAlias = tuple[bytes, ...]  # fields as they are on the wire, without line ends

# These fields belong to one connection, or to the body's framing on it, and not to the message.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"http2-settings", b"content-length", b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info",
})  # fmt: skip
USUAL_OPTIONS = frozenset({b"keep-alive", b"close"})

make_line = b": ".join

# Parsed heads that differ in their length alone are cached by the bytes on either side of its digits (decision 0012):
# KEPT_HEADS of each kind, each up to MAX_KEPT_BYTES long.
LENGTH, LENGTH_AS_TITLE = b"\r\ncontent-length: ", b"\r\nContent-Length: "
MAX_LENGTH_DIGITS = 15
KEPT_HEADS = 256
MAX_KEPT_BYTES = 4 * 1024


def find_keys(values: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Returns the keys that a request presents: a bearer token, and what Anthropic's clients send."""
    scheme, _, token = values.get(b"authorization", b"").partition(b" ")
    bearer = token.strip() if scheme.lower() == b"bearer" else b""
    return tuple([key for key in (bearer, values.get(b"x-api-key", b"")) if key])


def digest_keys(values: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Returns the SHA-256 digests of the keys that a request presents.

    By a digest a key is found in a time that shows nothing of how much of a guess is right.
    """
    return tuple([sha256(key).digest() for key in find_keys(values)])


def end_to_end(fields: Fields, dropped: frozenset[bytes]) -> Lines:
    """Returns the fields to pass on: those not hop by hop, not named by Connection and not in `dropped`."""
    dropped |= HOP_BY_HOP
    for name, value in fields:
        if name == b"connection" and value.lower() not in USUAL_OPTIONS:
            dropped |= {option.strip().lower() for option in value.split(b",")}
    return tuple([make_line(field) for field in fields if field[0] not in dropped])


def find_length(data: bytes, end: int) -> tuple[int, int] | None:
    """Returns start and end of content-length's digits in the head that ends at `end`, None if missing or unusual.

    It uses no pattern, which would take a microsecond more, twice per request.
    """
    at = data.find(LENGTH, 0, end)
    if at < 0 and (at := data.find(LENGTH_AS_TITLE, 0, end)) < 0:
        return None
    start = at + len(LENGTH)
    stop = data.find(b"\r\n", start)
    return (start, stop) if stop - start <= MAX_LENGTH_DIGITS and data[start:stop].isdigit() else None
