"""Server-sent events are the same wherever the bytes are cut."""

import time

import pytest

from gateway.backends.sse import EventStream, EventTooLong

STREAMS = {
    b'data: {"a": 1}\n\ndata: [DONE]\n\n': [b'{"a": 1}', b"[DONE]"],
    b'data: {"a": 1}\r\n\r\ndata: [DONE]\r\n\r\n': [b'{"a": 1}', b"[DONE]"],
    b"data: x\r\rdata: y\r\r": [b"x", b"y"],
    b"data: x\r\n\ndata: y\n\r\n": [b"x", b"y"],
    b"data: first\ndata: second\n\n": [b"first\nsecond"],
    b"data:no space\n\ndata:  two spaces\n\n": [b"no space", b" two spaces"],
    b"data\n\ndata:\n\n": [b"", b""],
    b": keep-alive\n\nevent: x\nid: 7\nretry: 3\ndata: y\n\n": [b"y"],
    b"event: nothing\n\n\n\n\ndata: y\n\n\n": [b"y"],
    b"database: no\ndata: yes\n\n": [b"yes"],
    "data: é🙂\n\n".encode(): ["é🙂".encode()],
    b"data: cut off\n": [],
    b"": [],
}


def parse(*pieces: bytes) -> list[bytes]:
    stream = EventStream()
    return [event for piece in pieces for event in stream.feed(piece)]


@pytest.mark.parametrize(("body", "events"), STREAMS.items())
def test_events_are_the_same_in_one_piece_and_cut_at_any_byte(body: bytes, events: list[bytes]) -> None:
    assert parse(body) == parse(*(bytes([byte]) for byte in body)) == events
    for at in range(len(body) + 1):
        assert parse(body[:at], body[at:]) == events, f"cut at {at}"
        assert parse(body[:at], b"", body[at:]) == events, f"cut at {at} with nothing between"


@pytest.mark.parametrize("body", STREAMS)
def test_between_events_means_that_the_next_one_begins_with_the_next_byte(body: bytes) -> None:
    for at in range(len(body) + 1):
        stream = EventStream()
        stream.feed(body[:at])
        if stream.is_between_events:
            assert stream.feed(body[at:]) == parse(body[at:]), f"cut at {at}"


def test_an_event_is_there_with_its_last_byte_and_not_before() -> None:
    stream = EventStream()
    assert stream.feed(b"data: x\r\n\r") == [b"x"]  # a lone CR ends a line too, so the event is complete here
    assert stream.feed(b"\ndata: y\n") == []
    assert stream.feed(b"\n") == [b"y"]


def test_an_event_without_end_is_refused() -> None:
    stream = EventStream(max_event_bytes=100)
    stream.feed(b"x" * 90)
    with pytest.raises(EventTooLong):
        stream.feed(b"x" * 20)


def test_an_event_that_is_too_long_is_refused_with_its_end_too() -> None:
    with pytest.raises(EventTooLong):
        EventStream(max_event_bytes=100).feed(b"data: short\n\ndata: %b\n\n" % (b"x" * 120))


def test_what_an_event_costs_grows_with_its_length_and_no_faster() -> None:
    """Once each read was searched together with all reads before it: eight times the length cost 64 times as much."""

    def cost(megabytes: int) -> float:
        stream = EventStream(max_event_bytes=1 << 30)
        began = time.process_time()
        for _ in range(16 * megabytes):
            stream.feed(b"x" * 65_536)
        assert stream.feed(b"\n\n") == []
        return time.process_time() - began

    assert min(cost(32) for _ in range(3)) < 24 * min(cost(4) for _ in range(3))
