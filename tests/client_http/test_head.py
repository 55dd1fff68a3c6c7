"""Heads: which fields go on to engines, and that the quick reading agrees with the parser's."""

import random

import httptools
import pytest

from gateway.client_http.head import RequestHead, _parse_get, read_usual, read_usual_get
from gateway.header import Fields

START = b"POST /v1/chat/completions HTTP/1.1\r\n"
BODY = b'{"model": "m"}'
ALPHABET = b"\r\n\0\t :,;=chunkedCL019-\x7f\x80"
USUAL = (
    b"Host: gateway.example\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 2.1\r\nAuthorization: Bearer sk-1\r\nConnection: keep-alive\r\n"
)


class Parsed:
    """A message as uvicorn's parser reads it."""

    def __init__(self, data: bytes) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.url = self.body = b""
        self.is_complete = False
        self.keeps_open = False
        self._parser = parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method()
        self.version = parser.get_http_version()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip()))  # it leaves the space at the end

    def on_headers_complete(self) -> None:
        self.keeps_open = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


def message(fields: bytes, body: bytes = BODY, start: bytes = START) -> bytes:
    return start + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


def check_alike(data: bytes) -> bool:
    """Whether the quick way takes it; if so the parser must have read the same."""
    usual = read_usual(data)
    if usual is None:
        return False
    request, length, start = usual
    data = data[: start + length]  # what follows is another message
    parsed = Parsed(data)
    rest = tuple(field for field in parsed.fields if field[0] != b"content-length")
    assert (parsed.method, parsed.version, parsed.keeps_open) == (b"POST", "1.1", True)
    assert (request.target, request.path.encode(), request.fields) == (parsed.url, parsed.url, rest)
    assert parsed.is_complete == (length <= len(data) - start)
    assert parsed.body == data[start : start + length]
    return True


@pytest.mark.parametrize("length", [0, 14, 70_000])
def test_a_usual_request_is_read_as_the_parser_reads_it(length: int) -> None:
    assert check_alike(message(USUAL, b"x" * length))
    assert check_alike(message(USUAL, b"x" * length)[: -max(1, length // 2)] if length else message(USUAL))
    assert check_alike(START + USUAL + b"content-length: 3\r\nX-After:\t a \r\n\r\nabc")
    assert check_alike(message(b"Host: a\r\nx-latin: \xe9\r\nx-empty:\r\n"))


def test_requests_that_differ_in_their_length_alone_share_what_was_read() -> None:
    first, second = read_usual(message(USUAL, b"{}")), read_usual(message(USUAL, b'{"model": 1}'))
    assert first is not None
    assert second is not None
    assert first[0] is second[0]
    assert (first[1], second[1]) == (2, 12)


@pytest.mark.parametrize(
    "head",
    [
        START + USUAL + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\ncontent-length: 3\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nCONTENT-LENGTH : 3\r\n\r\n",
        START + USUAL + b"CONTENT-LENGTH: 2\r\n\r\n",
        START + USUAL + b"Content-Length: 2, 2\r\n\r\n",
        START + USUAL + b"Content-Length: +2\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\n x-folded: 1\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nX-A: a\rb\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nX-A: a\nTransfer-Encoding: chunked\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nX-A: a\0\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nX A: a\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\n: a\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nno colon\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\nUpgrade: h2c\r\n\r\n",
        START + b"Host: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n",
        START + b"Host: a\r\nConnection: keep-alive, x-hop\r\nContent-Length: 2\r\n\r\n",
        START + b"Host: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n",
        START + USUAL + b"\r\n",
        START.replace(b"1.1", b"1.0") + USUAL + b"Content-Length: 2\r\n\r\n",
        START.replace(b"POST", b"PUT") + USUAL + b"Content-Length: 2\r\n\r\n",
        START.replace(b"completions", b"completions?a=1") + USUAL + b"Content-Length: 2\r\n\r\n",
        START.replace(b" HTTP", b"  HTTP") + USUAL + b"Content-Length: 2\r\n\r\n",
        START.replace(b"\r\n", b"\n") + USUAL + b"Content-Length: 2\r\n\r\n",
        b"\r\n" + START + USUAL + b"Content-Length: 2\r\n\r\n",
        START + USUAL + b"Content-Length: 2\r\n",
        START + USUAL + b"X-Long: " + b"a" * 5000 + b"\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_whatever_may_mean_more_than_it_seems_to_is_left_to_the_parser(head: bytes) -> None:
    assert read_usual(head + b"{}") is None


def mutated(message: bytes, draw: random.Random) -> bytes:
    """With one to three bytes changed, added or left out."""
    data = bytearray(message)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data))
        match draw.randrange(3):
            case 0:
                data[at] = draw.choice(ALPHABET)
            case 1:
                data.insert(at, draw.choice(ALPHABET))
            case _:
                del data[at]
    return bytes(data)


def test_no_change_of_a_byte_makes_the_two_read_differently() -> None:
    draw = random.Random(5)
    usual = message(USUAL)
    head = usual.index(b"\r\n\r\n") + 4
    taken = 0
    for _ in range(4000):
        taken += check_alike(mutated(usual[:head], draw) + usual[head:])
    assert taken > 1000


PROBE = b"GET /health HTTP/1.1\r\nHost: gateway.example\r\nUser-Agent: kube-probe/1.34\r\nAccept: */*\r\n\r\n"
CLOSING = PROBE.replace(b"Accept: */*", b"Connection: close")


def check_get_alike(data: bytes) -> bool:
    """Whether the quick way takes it; if so the parser must have read the same, and nothing beyond it."""
    usual = read_usual_get(data)
    if usual is None:
        return False
    request, keeps_open = usual
    parsed = Parsed(data)
    assert (parsed.method, parsed.version, parsed.keeps_open) == (b"GET", "1.1", keeps_open)
    assert (request.target, request.path.encode(), request.fields) == (parsed.url, parsed.url, tuple(parsed.fields))
    assert parsed.is_complete
    assert parsed.body == b""
    return True


@pytest.mark.parametrize(
    "data", [PROBE, CLOSING, CLOSING.replace(b"close", b"Close"), b"GET /a HTTP/1.1\r\nhost:b\r\n\r\n"]
)
def test_a_usual_get_is_read_as_the_parser_reads_it(data: bytes) -> None:
    assert check_get_alike(data)


@pytest.mark.parametrize(
    "data",
    [
        PROBE[:-1],
        PROBE + b"G",
        PROBE + PROBE,
        b"\r\n" + PROBE,
        PROBE.replace(b"GET", b"HEAD"),
        PROBE.replace(b"GET", b"POST"),
        PROBE.replace(b"1.1", b"1.0"),
        PROBE.replace(b"/health", b"/health?a"),
        PROBE.replace(b"Accept: */*", b"Content-Length: 0"),
        PROBE.replace(b"Accept: */*", b"Transfer-Encoding: chunked"),
        PROBE.replace(b"Accept: */*", b"Upgrade: h2c"),
        PROBE.replace(b"Accept: */*", b"Expect: 100-continue"),
        PROBE.replace(b"Accept: */*", b"Host: b"),
        PROBE.replace(b"Accept: */*", b"Connection: close, x-hop"),
        PROBE.replace(b"*/*", b"a" * 5000),
    ],
)
def test_a_get_that_may_mean_more_than_it_seems_to_is_left_to_the_parser(data: bytes) -> None:
    assert read_usual_get(data) is None


def test_nothing_but_short_gets_is_kept() -> None:
    kept = _parse_get.cache_info().currsize
    for data in (PROBE.replace(b"GET", b"PUT"), message(USUAL, b"x" * 100_000), PROBE[:-1], PROBE + b"x" * 100_000):
        assert read_usual_get(data) is None
    assert _parse_get.cache_info().currsize == kept


def test_no_change_of_a_byte_makes_the_two_read_a_get_differently() -> None:
    draw = random.Random(6)
    taken = 0
    for _ in range(4000):
        taken += check_get_alike(mutated(draw.choice([PROBE, CLOSING]), draw))
    assert taken > 1000


def test_fields_of_the_connection_and_the_gateways_own_do_not_go_on() -> None:
    fields: Fields = (
        (b"host", b"gateway.example"),
        (b"authorization", b"Bearer client's"),
        (b"accept-encoding", b"gzip, br"),
        (b"expect", b"100-continue"),
        (b"x-request-id", b"client's"),
        (b"content-length", b"99"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"X-Hop, close"),
        (b"connection", b"x-other"),
        (b"x-hop", b"1"),
        (b"x-other", b"1"),
        (b"keep-alive", b"5"),
        (b"te", b"trailers"),
        (b"trailer", b"x"),
        (b"proxy-connection", b"keep-alive"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"AAMAAABk"),
        (b"proxy-authorization", b"Basic eDp5"),
        (b"cookie", b"session=1"),
        (b"x-api-key", b"client's"),
        (b"api-key", b"client's"),
        (b"content-type", b"application/json"),
        (b"x-custom", b"a"),
        (b"x-custom", b"b"),
    )
    request = RequestHead("/v1/embeddings", b"/v1/embeddings?a=1", fields)
    assert request.lines == (b"content-type: application/json", b"x-custom: a", b"x-custom: b")
