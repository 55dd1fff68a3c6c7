"""Heads and bodies of HTTP/1.1 answers, wherever the bytes are cut; other bytes are refused."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from gateway.backends.http1_framing import (
    MAX_HEAD_BYTES,
    MAX_LINE_BYTES,
    Body,
    Chunked,
    Head,
    NotHTTP,
    Sized,
    UntilClose,
    measure_size_line,
    split_head,
)

OK = b"HTTP/1.1 200 OK\r\n"
SURPLUS = b"HTTP/1.1 200 OK\r\n\r\n"  # of an answer after this one

CHUNKED_BODIES = {
    b"3\r\nabc\r\n0\r\n\r\n": b"abc",
    b"3\r\nabc\r\n6\r\nd\r\nef!\r\n0\r\n\r\n": b"abcd\r\nef!",
    b"2\r\nab\r\n4\r\ncdef\r\n0\r\n\r\n": b"abcdef",  # cut after "4\r" that size would fit the first chunk
    b"3;name=value\r\nabc\r\n3 ; a=\"b\"\r\ndef\r\n0;last\r\n\r\n": b"abcdef",
    b"00a\r\n0123456789\r\nA\r\n0123456789\r\n000\r\n\r\n": b"0123456789" * 2,
    b"3\r\nabc\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n": b"abc",
    b"5\r\n\r\n0\r\n\r\n0\r\n\r\n": b"\r\n0\r\n",  # a payload that looks like an end
    b"1\r\n\n\r\n1\r\n\r\r\n0\r\n\r\n": b"\n\r",
    b"0\r\n\r\n": b"",
}  # fmt: skip

WHOLE = {size: b"%x\r\n%b\r\n" % (size, b"x" * size) for size in (1, 15, 16, 255, 256, 2047, 2048, 4096)}

NOT_CHUNKED = {
    "no size": b"\r\nabc",
    "negative": b"-3\r\nabc\r\n",
    "signed": b"+3\r\nabc\r\n",
    "0x": b"0x3\r\nabc\r\n",
    "0X": b"0X3\r\nabc\r\n",
    "underscore": b"1_0\r\n0123456789abcdef\r\n",
    "only an underscore": b"_\r\nabc\r\n",
    "no hexadecimal": b"g\r\nabc\r\n",
    "space before": b" 3\r\nabc\r\n",
    "a line feed before": b"\n3\r\nabc\r\n",
    "only an extension": b";a=b\r\nabc\r\n",
    "more than 64 bits": b"1" + b"0" * 16 + b"\r\nabc\r\n",
    "nothing after the chunk": b"3\r\nabc3\r\ndef\r\n0\r\n\r\n",
    "a line feed after the chunk": b"3\r\nabc\n3\r\ndef\r\n0\r\n\r\n",
    "something else and a line feed after the chunk": b"3\r\nabcX\n3\r\ndef\r\n0\r\n\r\n",
    "a carriage return and something else after the chunk": b"3\r\nabc\rX3\r\ndef\r\n0\r\n\r\n",
    "a longer chunk than it says": b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare line feed in an extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a bare line feed in a trailer": b"0\r\nA: b\n\nHTTP/1.1 200 OK\n\n\r\n\r\n",
    "a bare carriage return in a trailer": b"0\r\nA: b\rC: d\r\n\r\n",
    "NUL in a trailer": b"0\r\nA: b\0\r\n\r\n",
    "NUL in an extension": b"3;a\0b\r\nabc\r\n0\r\n\r\n",
    "a trailer that is none": b"0\r\nHTTP/1.1 200 OK\r\n\r\n",
}


def feed(body: Body, pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Returns the payload in the pieces, and how many bytes belong to the body; feeds no byte after its end."""
    payload: list[bytes] = []
    own = b""
    for piece in pieces:
        assert not body.is_complete
        used = body.feed(piece, payload)
        assert used == len(piece) or body.is_complete
        own += piece[:used]
    return b"".join(payload), own


def skip(body: Chunked, pieces: Iterable[bytes]) -> bytes:
    """As `feed`, with `skip`."""
    own = b""
    for piece in pieces:
        used = body.skip(piece)
        assert used == len(piece) or body.is_complete
        own += piece[:used]
        if body.is_complete:
            break
    return own


def each_byte(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


def cuts(data: bytes) -> Iterable[tuple[bytes, bytes]]:
    return ((data[:at], data[at:]) for at in range(1, len(data)))


@pytest.mark.parametrize(("wire", "payload"), CHUNKED_BODIES.items())
def test_chunks_that_are_read_or_passed_on_are_the_same_however_they_are_cut(wire: bytes, payload: bytes) -> None:
    for pieces in ((wire,), each_byte(wire), *cuts(wire)):
        fed, skipped = Chunked(), Chunked()
        assert feed(fed, pieces) == (payload, wire), pieces
        assert skip(skipped, pieces) == wire, pieces
        assert (fed.is_complete, skipped.is_complete) == (True, True)


@pytest.mark.parametrize("wire", CHUNKED_BODIES)
def test_what_follows_the_last_chunk_is_not_the_bodys(wire: bytes) -> None:
    for pieces in ((wire + SURPLUS,), *((start, end + SURPLUS) for start, end in cuts(wire))):
        body = Chunked()
        assert feed(body, pieces)[1] == wire
        assert skip(Chunked(), pieces) == wire


@pytest.mark.parametrize("wire", CHUNKED_BODIES)
def test_chunks_are_incomplete_until_their_last_byte(wire: bytes) -> None:
    fed, skipped = Chunked(), Chunked()
    feed(fed, each_byte(wire[:-1]))
    skip(skipped, each_byte(wire[:-1]))
    assert not fed.is_complete
    assert not skipped.is_complete


def refuses(read: Callable[[], object]) -> bool:
    try:
        read()
    except NotHTTP:
        return True
    return False


@pytest.mark.parametrize("wire", NOT_CHUNKED.values(), ids=NOT_CHUNKED)
def test_nonsense_between_chunks_is_refused_however_it_is_cut(wire: bytes) -> None:
    for pieces in ((wire,), each_byte(wire), *cuts(wire)):
        assert refuses(partial(feed, Chunked(), pieces)), pieces
        assert refuses(partial(skip, Chunked(), pieces)), pieces


@pytest.mark.parametrize("start", [b"0\r\n\x85", b"0\r\nA: b\n", b"0\r\n\n", b"5\n", b"g", b"3;a\n"])
def test_a_line_that_can_become_none_is_refused_before_its_end(start: bytes) -> None:
    """What has been read is passed on, and some clients take a bare LF for the end of a line, or of an answer."""
    for pieces in ((start,), each_byte(start), *cuts(start)):
        assert refuses(partial(feed, Chunked(), pieces)), pieces
        assert refuses(partial(skip, Chunked(), pieces)), pieces


def test_a_line_without_end_is_refused() -> None:
    for start in (b"1;", b"0\r\na: "):
        body = Chunked()
        with pytest.raises(NotHTTP):
            feed(body, [start, *[b"x" * 1024] * (2 + MAX_LINE_BYTES // 1024)])


def test_a_sized_body_ends_after_its_declared_length() -> None:
    wire = b"0123456789"
    for pieces in ((wire,), each_byte(wire), *cuts(wire), (wire + SURPLUS,), (wire[:4], wire[4:] + SURPLUS)):
        body = Sized(10)
        assert feed(body, pieces) == (wire, wire)
        assert body.is_complete


def test_an_empty_body_is_complete_from_the_start() -> None:
    body = Sized(0)
    assert body.is_complete
    assert feed(Sized(0), ()) == (b"", b"")
    assert body.feed(SURPLUS, []) == 0


def test_an_endless_body_takes_everything() -> None:
    body = UntilClose()
    assert feed(body, (b"abc", b"", SURPLUS)) == (b"abc" + SURPLUS, b"abc" + SURPLUS)
    assert not body.is_complete
    assert body.ends_with_connection


def read_head(block: bytes) -> tuple[Head, int | None]:
    split = split_head(block + b"\r\n")
    assert split is not None
    head, length, rest = split
    assert rest == b""
    return head, length


def test_a_head_is_the_same_wherever_it_ends() -> None:
    block = OK + b"Content-Type:text/plain\r\nX-Empty:\r\nx-spaces: \t a b \t\r\nX-UTF-8: \xc3\xa9\r\n\r\n"
    for at in range(len(block)):
        assert split_head(block[:at]) is None, f"cut at {at}"
    for rest in (b"", b"x", b"\r\n\r\n", SURPLUS):
        split = split_head(block + rest)
        assert split is not None
        head, length, after = split
        assert (length, after) == (None, rest)
        assert head.status == 200
        assert head.fields == (
            (b"content-type", b"text/plain"),
            (b"x-empty", b""),
            (b"x-spaces", b"a b"),
            (b"x-utf-8", b"\xc3\xa9"),
        )


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"HTTP/1.1 200 OK", 200), (b"HTTP/1.1 200 ", 200), (b"HTTP/1.1 404", 404), (b"HTTP/1.0 599 What ever!", 599)],
)
def test_status_lines(line: bytes, status: int) -> None:
    assert read_head(line + b"\r\n")[0].status == status


NOT_A_HEAD = {
    "another protocol": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "HTTP/2": b"HTTP/2 200 OK\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n\r\n",
    "HTTP/0.9": b"<html>\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "below 100": b"HTTP/1.1 099 Low\r\n\r\n",
    "above 599": b"HTTP/1.1 600 High\r\n\r\n",
    "a signed status": b"HTTP/1.1 +20 OK\r\n\r\n",
    "a field without colon": OK + b"nonsense\r\n\r\n",
    "a usual field without colon": OK + b"Date\r\n\r\n",
    "a field without name": OK + b": value\r\n\r\n",
    "a space before the colon": OK + b"name : value\r\n\r\n",
    "a space in a name": OK + b"na me: value\r\n\r\n",
    "a folded value": OK + b"name: a\r\n b\r\n\r\n",
    "a bare LF in a value": OK + b"name: a\nset-cookie: b\r\n\r\n",
    "a bare CR in a value": OK + b"name: a\rset-cookie: b\r\n\r\n",
    "a bare LF in the status line": b"HTTP/1.1 200 O\nK\r\n\r\n",
    "bare LFs": b"HTTP/1.1 200 OK\nname: a\n\n" + OK + b"\r\n",
    "NUL in a value": OK + b"name: a\0b\r\n\r\n",
    "NUL in a name": OK + b"na\0me: b\r\n\r\n",
    "a negative length": OK + b"content-length: -1\r\n\r\n",
    "a signed length": OK + b"content-length: +1\r\n\r\n",
    "a length that is none": OK + b"content-length: one\r\n\r\n",
    "an empty length": OK + b"content-length:\r\n\r\n",
    "a hexadecimal length": OK + b"content-length: 0x10\r\n\r\n",
    "an underscored length": OK + b"content-length: 1_0\r\n\r\n",
    "a length of many digits": OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n",
    "two lengths": OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    "two lengths in one": OK + b"content-length: 1, 2\r\n\r\n",
    "an unknown coding": OK + b"transfer-encoding: gzip\r\n\r\n",
    "a coding beneath chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n",
    "chunked, but not last": OK + b"transfer-encoding: chunked, gzip\r\n\r\n",
    "chunked, then another coding": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
    "chunked twice": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
    "a coding that ends like chunked": OK + b"transfer-encoding: xchunked\r\n\r\n",
}


@pytest.mark.parametrize("block", NOT_A_HEAD.values(), ids=NOT_A_HEAD)
def test_what_is_no_head_is_refused(block: bytes) -> None:
    with pytest.raises(NotHTTP):
        split_head(block)


def test_a_head_without_end_is_refused() -> None:
    assert split_head(OK + b"a: " + b"b" * (MAX_HEAD_BYTES // 2)) is None
    with pytest.raises(NotHTTP):
        split_head(OK + b"a: " + b"b" * MAX_HEAD_BYTES)


def test_what_cannot_become_a_head_is_refused_at_its_first_byte() -> None:
    for start in (b"h", b"\r\n", b"<", b"HTTP/2", b"\x16\x03\x01"):
        with pytest.raises(NotHTTP):
            split_head(start)


@pytest.mark.parametrize(
    ("fields", "body", "length"),
    [
        (b"", UntilClose, None),
        (b"content-length: 7\r\n", Sized, 7),
        (b"content-length: 007\r\n", Sized, 7),
        (b"content-length: 7\r\nContent-Length: 7\r\n", Sized, 7),
        (b"transfer-encoding: chunked\r\n", Chunked, None),
        (b"Transfer-Encoding: CHUNKED\r\n", Chunked, None),
        # RFC 9112 6.3: Transfer-Encoding overrides Content-Length, in whichever order they come.
        (b"content-length: 7\r\ntransfer-encoding: chunked\r\n", Chunked, None),
        (b"transfer-encoding: chunked\r\ncontent-length: 7\r\n", Chunked, None),
    ],
)
def test_what_frames_a_body(fields: bytes, body: type[Body], length: int | None) -> None:
    head, declared = read_head(OK + fields)
    assert type(head.body(declared)) is body
    assert declared == length


@pytest.mark.parametrize("status", [b"204", b"304"])
@pytest.mark.parametrize("fields", [b"", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"])
def test_some_answers_have_no_body_whatever_they_declare(status: bytes, fields: bytes) -> None:
    head, length = read_head(b"HTTP/1.1 " + status + b" X\r\n" + fields)
    assert length == 0
    assert head.body(length).is_complete


@pytest.mark.parametrize(
    ("version", "fields", "keeps_open"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"connection: close\r\n", False),
        (b"1.1", b"Connection: Keep-Alive\r\n", True),
        (b"1.1", b"connection: x, Close\r\n", False),
        (b"1.1", b"connection: close\r\nconnection: keep-alive\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"connection: keep-alive\r\n", True),
        # RFC 9112 6.1: such a message may be an attempt at splitting; its connection is not to be used again.
        (b"1.1", b"content-length: 7\r\ntransfer-encoding: chunked\r\n", False),
        (b"1.1", b"transfer-encoding: chunked\r\ncontent-length: 7\r\n", False),
        (b"1.0", b"connection: keep-alive\r\ntransfer-encoding: chunked\r\n", False),
    ],
)
def test_whether_a_connection_may_carry_another_answer(version: bytes, fields: bytes, keeps_open: bool) -> None:
    head, _ = read_head(b"HTTP/" + version + b" 200 OK\r\ncontent-type: a\r\n" + fields)
    assert head.keeps_open is keeps_open


@pytest.mark.parametrize("size", WHOLE)
def test_a_whole_chunk_is_recognised_by_its_length_and_its_ends(size: int) -> None:
    chunk = WHOLE[size]
    line = len(b"%x\r\n" % size) if size < 2048 else 0  # longer chunks are not parsed this way
    assert measure_size_line(chunk) == line
    for other in (chunk[:-1], chunk + b"x", chunk[:-1] + b"x", chunk[:-2] + b"x\n", b"0" + chunk[1:], chunk * 2):
        assert measure_size_line(other) == 0


def test_what_is_too_short_is_no_whole_chunk() -> None:
    assert [measure_size_line(b"\r\n"[:length]) for length in range(3)] == [0, 0, 0]
