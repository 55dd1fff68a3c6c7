"""A request's head, and the quick way to read it. Knows no OpenAI.

A usual head is read here in one piece; uvicorn's parser reads every other one (decision 0012).
"""

import re
from functools import lru_cache

from gateway.header import KEPT_HEADS, MAX_KEPT_BYTES, Fields, digest_keys, end_to_end, find_length

# Not for engines: the gateway names them itself, has a key of its own for them, and reads their answers.
NOT_SENT_ON = frozenset({
    b"host", b"expect", b"x-request-id", b"accept-encoding",
    b"authorization", b"cookie", b"x-api-key", b"api-key",  # and what clients call a key for the gateway
})  # fmt: skip

OWN = frozenset({b"x-crossover-pin", b"x-crossover-run"})  # fields that only this gateway understands
END = b"\r\n\r\n"
USUAL = re.compile(rb"(?:POST|GET) (/[a-z0-9/_]+) HTTP/1\.1((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*)+)")
FIELD = re.compile(rb"\r\n([^:]+):([^\r\n]*)")
POST = b"POST "
GET = b"GET "
CLOSE = "close"
KEPT_OPEN = frozenset({"", "keep-alive"})  # values of the connection field that keep it open
# Fields that decide how a body is framed or what becomes of the connection, or that ask for an answer of their own.
UNUSUAL = frozenset({b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"http2-settings"})


class RequestHead:
    """A request's head. `path`: without the query. `target`: path and query as sent. `has_own`: it has a field of OWN.

    `credentials`: digests of the keys that it presents. It never changes: requests with the same head share it.
    """

    __slots__ = ("_values", "credentials", "fields", "has_own", "host", "lines", "origin", "path", "target")

    def __init__(self, path: str, target: bytes, fields: Fields) -> None:
        self.path = path
        self.target = target
        self.fields = fields
        self._values: dict[bytes, bytes] = dict(fields)
        self.lines = end_to_end(fields, NOT_SENT_ON)
        self.credentials = digest_keys(self._values)
        self.host = self._values.get(b"host", b"")
        self.origin = self._values.get(b"origin")
        self.has_own = not OWN.isdisjoint(self._values)

    def field(self, name: bytes) -> str | None:
        value = self._values.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def length(self) -> int:
        """The body's bytes by content-length; 0 without one, or with one that is no number: the server refuses it."""
        length = self._values.get(b"content-length", b"")
        return int(length) if length.isdigit() else 0


def read_usual(data: bytes) -> tuple[RequestHead, int, int] | None:
    """Returns a whole head without its content-length, the body's length by that field, and where the body begins.

    Returns None for every head that may mean more than it seems to; uvicorn's parser would read the others alike. The
    heads of one client differ in the length alone, so that only a client's first one is parsed.
    """
    end = data.find(END, 0, MAX_KEPT_BYTES)
    if end < 0 or not data.startswith(POST) or (place := find_length(data, end)) is None:
        return None
    start, stop = place
    request = _parse_around(data[:start], data[stop:end])
    return None if request is None else (request, int(data[start:stop]), end + len(END))


def read_usual_get(data: bytes) -> tuple[RequestHead, bool] | None:
    """Returns the head of one whole GET without a body, as probes send it, and whether the connection then stays open.

    Returns None as `read_usual` does. It checks before it caches: other data may be long, and no two alike.
    """
    if not data.startswith(GET) or data.find(END, 0, MAX_KEPT_BYTES) + len(END) != len(data):
        return None
    request = _parse_get(data[: -len(END)])
    return None if request is None else (request, _connection(request) != CLOSE)


@lru_cache(maxsize=KEPT_HEADS)
def _parse_get(head: bytes) -> RequestHead | None:
    request = _parse(head)
    return request if request is not None and _connection(request) in {*KEPT_OPEN, CLOSE} else None


@lru_cache(maxsize=KEPT_HEADS)
def _parse_around(before: bytes, after: bytes) -> RequestHead | None:
    """Parses the head whose content-length stands between the two parts; returns None if it is not usual."""
    line = before.rfind(b"\r\n")
    request = _parse(before[:line] + after)
    return request if request is not None and _connection(request) in KEPT_OPEN else None


def _parse(head: bytes) -> RequestHead | None:
    found = USUAL.fullmatch(head)
    if found is None:
        return None
    fields = tuple([(name.lower(), value.strip()) for name, value in FIELD.findall(found[2])])
    names = {name for name, _ in fields}
    is_usual = names.isdisjoint(UNUSUAL) and len(names) == len(fields) and b"host" in names
    return RequestHead(found[1].decode(), found[1], fields) if is_usual else None


def _connection(request: RequestHead) -> str:
    return (request.field(b"connection") or "").lower()
