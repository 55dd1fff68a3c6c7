"""The gRPC client's HTTP/2, bytes in and bytes out: framing, windows, header blocks, ends, and violations."""

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from gateway.backends.rpc import h2_connection
from gateway.backends.rpc.call import Outcome, Status
from gateway.backends.rpc.h2_connection import Connection
from gateway.backends.rpc.h2_frames import ErrorCode
from gateway.backends.rpc.h2_stream import MAX_MESSAGE_BYTES, WINDOW, H2Stream
from tests.fakes.h2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEAD,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    MAX_STREAMS,
    OK,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    frame,
    goaway,
    message,
    padded,
    reset,
    settings,
    window_update,
)
from tests.fakes.receiver import RecordingReceiver

# Nothing here needs an event loop.
pytestmark = pytest.mark.parametrize("anyio_backend", [True], ids=["uvloop"], indirect=True)

PATH = "/package.Service/Method"
REQUEST = b"request"
DEFAULT_WINDOW = 65_535


class Ends:
    """A Connection and a Peer, connected by method calls."""

    def __init__(self, greeting: dict[int, int] | None = None, *, sends_settings: bool = True) -> None:
        self.client = Connection("engine:8001")
        self.server = Peer()
        if sends_settings:
            self.server_sends(settings(greeting))

    def call(self, request: bytes = REQUEST, receiver: RecordingReceiver | None = None) -> RecordingReceiver:
        receiver = receiver or RecordingReceiver()
        stream = H2Stream(PATH, request, receiver)
        stream.holder = self.client
        receiver.stream = stream
        self.client.open(stream)
        self.pass_on()
        return receiver

    def server_sends(self, *data: bytes) -> None:
        self.client.receive(b"".join(data))
        self.pass_on()

    def pass_on(self) -> None:
        self.server.feed(self.client.data_to_send())

    def cancel(self, receiver: RecordingReceiver) -> None:
        receiver.cancel()
        self.pass_on()


@pytest.fixture
def ends() -> Ends:
    return Ends()


# Requests.


def test_it_begins_with_settings_that_refuse_pushes_and_open_the_windows() -> None:
    ends = Ends(sends_settings=False)
    ends.pass_on()
    assert ends.server.settings == {2: 0, 4: WINDOW, 6: h2_connection.MAX_HEADER_BYTES}
    assert ends.server.updates == [(0, 2**31 - 1 - DEFAULT_WINDOW)]


def test_a_request_is_a_grpc_call_with_one_message_and_a_half_close(ends: Ends) -> None:
    for stream_id in (1, 3):
        ends.call(b"x" * 10)
        sent = ends.server.requests[stream_id]
        assert sent.fields == {
            ":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "engine:8001",
            "content-type": "application/grpc", "te": "trailers", "grpc-accept-encoding": "identity",
            "user-agent": "crossover",
        }  # fmt: skip
        assert (sent.content, sent.is_whole) == (b"x" * 10, True)


def test_settings_are_acknowledged_and_pings_answered(ends: Ends) -> None:
    ends.server_sends(settings({MAX_STREAMS: 7}), frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"87654321"))
    assert ends.server.settings_acks == 2
    assert ends.server.acks == [b"12345678"]
    assert ends.server.pings == []


def test_a_header_table_that_the_server_takes_away_is_not_used() -> None:
    ends = Ends({1: 0})
    ends.server._decoder.max_allowed_table_size = 0
    ends.server._decoder.header_table_size = 0
    for _ in range(3):
        ends.call()
    assert all(request.fields[":path"] == PATH for request in ends.server.requests.values())


# Messages, however they are cut.


def wire_of_everything(server: Peer) -> bytes:
    """Answers to streams 1 and 3 in every form that DATA and HEADERS can have."""
    whole = message(b"one") + message(b"") + message(b"three" * 40)
    wire = [
        server.headers(1, *HEAD), frame(DATA, 0, 1, message(b"zero")), frame(DATA, 0, 1, whole[:2]),
        frame(PING, 0, 0, b"12345678"), server.headers(3, (":status", "103")), server.headers(3, *HEAD),
        frame(DATA, 0, 3, b""), frame(DATA, PADDED, 1, padded(whole[2:11], 20)), frame(PRIORITY, 0, 3, bytes(5)),
        frame(DATA, 0, 1, whole[11:]), frame(DATA, PADDED, 3, padded(message(b"padded"), 0)),
        frame(DATA, 0, 3, message(b"three-zero")), frame(0x42, 0xFF, 1, b"a type nobody knows"),
        frame(SETTINGS, 0, 0, b"\xff\xff\0\0\0\1"),
    ]  # fmt: skip
    block = server.block(*OK, ("x-filler", "f" * 50))
    wire += [
        frame(HEADERS, END_STREAM | PADDED | HAS_PRIORITY, 1, padded(bytes(5) + block[:3], 7)),
        frame(CONTINUATION, 0, 1, block[3:20]),
        frame(CONTINUATION, END_HEADERS, 1, block[20:]),
        server.headers(3, *OK, is_end=True),
    ]
    return b"".join(wire)


def check_everything(first: RecordingReceiver, second: RecordingReceiver) -> None:
    assert (first.status, first.received) == (Status.OK, [b"zero", b"one", b"", b"three" * 40])
    assert (second.status, second.received) == (Status.OK, [b"padded", b"three-zero"])
    assert first.breaches == second.breaches == []


def test_answers_cut_in_two_at_every_byte_and_in_small_pieces() -> None:
    size = len(wire_of_everything(Peer()))
    for borders in [(cut,) for cut in range(size + 1)] + [
        tuple(range(0, size, step)) for step in (1, 2, 3, 7, 9, 14, 64)
    ]:
        ends = Ends()
        first, second = ends.call(), ends.call()
        wire = wire_of_everything(ends.server)
        for start, end in pairwise((0, *borders, size)):
            ends.server_sends(wire[start:end])
        check_everything(first, second)
        assert not ends.client.streams


def test_messages_that_arrive_together_are_delivered_together(ends: Ends) -> None:
    receivers = [ends.call() for _ in range(3)]
    streams = (1, 3, 5)
    ends.server_sends(*(ends.server.headers(stream_id, *HEAD) for stream_id in streams))
    ends.server_sends(*(frame(DATA, 0, stream_id, message(b"a")) for _ in range(4) for stream_id in streams))
    ends.server_sends(frame(DATA, 0, 3, message(b"b") * 5))
    assert [receiver.batches for receiver in receivers] == [[4], [4, 5], [4]]


def test_a_message_may_be_as_long_as_many_frames(ends: Ends) -> None:
    receiver = ends.call()
    content = random.Random(0).randbytes(200_000)
    wire = message(content)
    ends.server_sends(ends.server.headers(1, *HEAD))
    for at in range(0, len(wire), 16_384):
        ends.server_sends(frame(DATA, 0, 1, wire[at : at + 16_384]))
    ends.server_sends(ends.server.headers(1, *OK, is_end=True))
    assert (receiver.received, receiver.status) == ([content], Status.OK)


FRAMES: dict[str, Callable[[Peer], bytes]] = {
    "a message": lambda _: frame(DATA, 0, 1, message(b"token")),
    "an empty message": lambda _: frame(DATA, 0, 1, message(b"")),
    "a message as long as a frame may be": lambda _: frame(DATA, 0, 1, message(bytes(16_384 - 5))),
    "a message in a frame that is too long": lambda _: frame(DATA, 0, 1, message(bytes(16_384 - 4))),
    "two messages": lambda _: frame(DATA, 0, 1, message(b"one") + message(b"two")),
    "two frames": lambda _: frame(DATA, 0, 1, message(b"one")) + frame(DATA, 0, 3, message(b"two")),
    "less than a message": lambda _: frame(DATA, 0, 1, message(b"token")[:-1]),
    "more than a message": lambda _: frame(DATA, 0, 1, message(b"token") + b"x"),
    "a compressed message": lambda _: frame(DATA, 0, 1, message(b"token", is_compressed=True)),
    "a message and the end": lambda _: frame(DATA, END_STREAM, 1, message(b"token")),
    "a padded message": lambda _: frame(DATA, PADDED, 1, padded(message(b"token"), 7)),
    "a message with the reserved bit": lambda _: frame(DATA, 0, 1 | 1 << 31, message(b"token")),
    "a message on a stream that never was": lambda _: frame(DATA, 0, 9, message(b"token")),
    "a message on no stream": lambda _: frame(DATA, 0, 0, message(b"token")),
    "a message before the head": lambda _: frame(DATA, 0, 5, message(b"token")),
    "a ping": lambda _: frame(PING, 0, 0, bytes(8)),
    "a frame of an unknown type": lambda _: frame(77, 0, 1, message(b"token")),
    "half a header block": lambda peer: frame(HEADERS, 0, 1, peer.headers(1, *OK)[9:]),
    "trailers": lambda peer: peer.headers(1, *OK, is_end=True),
}


def heard_of(frames: Sequence[str], size: int | None) -> object:
    """What the receivers and the server receive when these frames arrive one per read, or in pieces."""
    ends = Ends()
    receivers = [ends.call() for _ in range(3)]
    ends.server_sends(ends.server.headers(1, *HEAD), ends.server.headers(3, *HEAD))
    said = b""
    for name in frames:
        wire = FRAMES[name](ends.server)
        for at in range(0, len(wire), size or len(wire)):
            ends.client.receive(wire[at : at + (size or len(wire))])
            said += ends.client.data_to_send()
    return (
        said,
        ends.client.is_broken,
        [(receiver.received, receiver.outcome, receiver.breaches) for receiver in receivers],
    )


@pytest.mark.parametrize("first", FRAMES)
@pytest.mark.parametrize("second", FRAMES)
def test_a_read_that_is_one_frame_is_the_same_as_one_in_pieces(first: str, second: str) -> None:
    """A read of one frame with one message is parsed by a shorter way."""
    assert heard_of((first, second, "a message"), None) == heard_of((first, second, "a message"), 13)


def test_a_receiver_may_leave_from_inside_a_read_that_is_one_message(ends: Ends) -> None:
    receiver = ends.call(receiver=RecordingReceiver(RecordingReceiver.cancel))
    ends.server_sends(ends.server.headers(1, *HEAD))
    for _ in range(2):
        ends.server_sends(frame(DATA, 0, 1, message(b"token")))
    assert (receiver.received, receiver.breaches, ends.client.streams) == ([b"token"], [], {})
    assert ends.server.resets == {1: ErrorCode.CANCEL}


# Receive windows.


def test_windows_are_opened_again_by_what_came_in_whole_and_in_pieces(ends: Ends) -> None:
    ends.call()
    ends.server_sends(ends.server.headers(1, *HEAD))
    whole, pieces = frame(DATA, 0, 1, message(bytes(16_000))), frame(DATA, PADDED, 1, padded(message(bytes(700)), 255))
    opened = {0: 2**31 - 1, 1: WINDOW}
    taken = 0
    ends.server.updates.clear()
    for number in range(1000):
        wire = whole if number % 2 else pieces
        ends.server_sends(wire)
        taken += len(wire) - 9
    for stream_id, increment in ends.server.updates:
        opened[stream_id] += increment
    assert opened[1] - taken >= WINDOW // 2
    assert all(stream_id == 1 for stream_id, _ in ends.server.updates)  # the connection's window is far larger


def test_the_connections_window_is_opened_again(ends: Ends) -> None:
    ends.client._credit = 2**30 + 10_000
    ends.call()
    ends.server.updates.clear()
    ends.server_sends(ends.server.headers(1, *HEAD), frame(DATA, 0, 1, message(bytes(9_000))))
    assert ends.server.updates == []
    ends.server_sends(frame(DATA, 0, 1, message(bytes(9_000))))
    assert [stream_id for stream_id, _ in ends.server.updates] == [0]


def test_what_comes_for_a_call_that_was_left_counts_for_the_connection_only(ends: Ends) -> None:
    receiver = ends.call()
    ends.server_sends(ends.server.headers(1, *HEAD))
    ends.cancel(receiver)
    before = ends.client._credit
    ends.server_sends(frame(DATA, 0, 1, message(b"late")))
    assert ends.client._credit == before - len(message(b"late"))
    assert receiver.received == []


# Send windows.


def test_a_long_request_waits_for_both_windows() -> None:
    ends = Ends({INITIAL_WINDOW: 100})
    ends.call(bytes(70_000))
    sent = ends.server.requests[1]
    assert len(sent.body) == 100
    ends.server_sends(window_update(1, 100_000))
    assert len(sent.body) == DEFAULT_WINDOW  # the connection's
    assert max(sent.frames) == 16_384
    ends.server_sends(window_update(0, 10))
    assert len(sent.body) == DEFAULT_WINDOW + 10
    assert not sent.is_whole
    ends.server_sends(window_update(0, 100_000))
    assert (sent.content, sent.is_whole) == (bytes(70_000), True)


def test_byte_by_byte_windows_carry_everything_in_the_end() -> None:
    ends = Ends({INITIAL_WINDOW: 0})
    ends.call(b"precious")
    assert ends.server.requests[1].body == b""
    for _ in range(len(message(b"precious"))):
        ends.server_sends(window_update(1, 1))
    sent = ends.server.requests[1]
    assert (sent.content, sent.frames, sent.is_whole) == (b"precious", [1] * 13, True)


def test_a_new_initial_window_changes_streams_that_are_open_even_to_below_zero() -> None:
    ends = Ends({INITIAL_WINDOW: 1000})
    ends.call(bytes(5000))
    sent = ends.server.requests[1]
    ends.server_sends(settings({INITIAL_WINDOW: 400}))
    ends.server_sends(window_update(1, 600))
    assert len(sent.body) == 1000  # 1000 are gone, 400 + 600 are allowed
    ends.server_sends(window_update(1, 1))
    assert len(sent.body) == 1001
    ends.server_sends(settings({INITIAL_WINDOW: 100_000}))
    assert sent.is_whole


def test_larger_frames_are_sent_where_they_are_allowed() -> None:
    ends = Ends({MAX_FRAME: 50_000, INITIAL_WINDOW: 1_000_000})
    ends.server_sends(window_update(0, 1_000_000))
    ends.call(bytes(120_000))
    assert ends.server.requests[1].frames == [50_000, 50_000, 20_005]


def test_a_long_request_does_not_hold_up_short_ones() -> None:
    ends = Ends({INITIAL_WINDOW: 1_000_000})
    ends.call(bytes(400_000))
    ends.call(bytes(1000))
    assert not ends.server.requests[3].is_whole
    ends.server_sends(window_update(0, 40_000))
    assert ends.server.requests[3].is_whole
    assert not ends.server.requests[1].is_whole


def test_nothing_of_a_request_goes_out_while_the_socket_takes_no_more(ends: Ends) -> None:
    ends.client.pause()
    ends.call()
    assert ends.server.requests[1].body == b""
    ends.client.resume()
    ends.pass_on()
    assert ends.server.requests[1].is_whole


def test_a_request_that_is_cancelled_while_it_waits_frees_its_bytes_and_the_next_goes_on() -> None:
    ends = Ends({INITIAL_WINDOW: 10})
    first, second = ends.call(bytes(100)), ends.call(bytes(100))
    ends.cancel(first)
    assert ends.server.resets == {1: ErrorCode.CANCEL}
    assert isinstance(first.stream, H2Stream)
    assert len(first.stream.body) == 0
    ends.server_sends(window_update(3, 1000), window_update(1, 1000))
    assert ends.server.requests[3].is_whole
    assert len(ends.server.requests[1].body) == 10
    assert second.outcome is None


# Ends.


@pytest.mark.parametrize(
    ("trailers", "status", "detail"),
    [
        ((("grpc-status", "0"),), Status.OK, ""),
        ((("grpc-status", "14"), ("grpc-message", "gone")), Status.UNAVAILABLE, "gone"),
        ((("grpc-status", "3"), ("grpc-message", "50%25 of %C3%A4 %zz %")), Status.INVALID_ARGUMENT, "50% of ä %zz %"),
        ((("grpc-status", "13"), ("grpc-message", "%ff")), Status.INTERNAL, "\ufffd"),
        ((("grpc-status", "99"),), Status.UNKNOWN, ""),
        ((("grpc-status", "-1"),), Status.UNKNOWN, ""),
        ((("grpc-status", "no number"),), Status.UNKNOWN, ""),
    ],
)
def test_trailers_end_a_call_with_or_without_a_head_before(
    trailers: tuple[tuple[str, str], ...], status: Status, detail: str
) -> None:
    ends = Ends()
    first, second = ends.call(), ends.call()
    ends.server_sends(ends.server.answer(1, b"m", trailers=trailers))
    ends.server_sends(ends.server.headers(3, *HEAD, *trailers, is_end=True))
    for receiver in (first, second):
        assert receiver.outcome is not None
        assert receiver.outcome == Outcome(status, detail)
    assert first.received == [b"m"]
    assert ends.server.resets == {}
    assert not ends.client.streams


@pytest.mark.parametrize(
    ("http", "status"),
    [
        ("400", Status.INTERNAL),
        ("401", Status.UNAUTHENTICATED),
        ("403", Status.PERMISSION_DENIED),
        ("404", Status.UNIMPLEMENTED),
        ("429", Status.UNAVAILABLE),
        ("503", Status.UNAVAILABLE),
        ("500", Status.UNKNOWN),
        ("302", Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize("is_end", [True, False])
def test_an_answer_that_is_not_grpcs_ends_by_its_http_status(http: str, status: Status, *, is_end: bool) -> None:
    ends = Ends()
    receiver = ends.call()
    ends.server_sends(ends.server.headers(1, (":status", http), ("content-type", "text/html"), is_end=is_end))
    assert receiver.status is status
    assert ends.server.resets == ({} if is_end else {1: ErrorCode.CANCEL})


def test_another_content_type_is_no_answer(ends: Ends) -> None:
    receiver = ends.call()
    ends.server_sends(ends.server.headers(1, (":status", "200"), ("content-type", "text/html")))
    assert receiver.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.NO_ERROR, Status.INTERNAL),
        (ErrorCode.PROTOCOL_ERROR, Status.INTERNAL),
        (ErrorCode.REFUSED_STREAM, Status.UNAVAILABLE),
        (ErrorCode.CANCEL, Status.CANCELLED),
        (ErrorCode.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (ErrorCode.INADEQUATE_SECURITY, Status.PERMISSION_DENIED),
        (ErrorCode.STREAM_CLOSED, Status.UNKNOWN),
        (0xBAD, Status.UNKNOWN),
    ],
)
def test_resets_end_one_call_by_their_code(code: int, status: Status) -> None:
    ends = Ends()
    receiver, neighbour = ends.call(), ends.call()
    ends.server_sends(reset(1, code))
    assert receiver.status is status
    assert neighbour.outcome is None
    assert ends.server.resets == {}


def test_messages_before_an_end_in_the_same_read_are_delivered_first(ends: Ends) -> None:
    receiver = ends.call()
    ends.server_sends(ends.server.headers(1, *HEAD), frame(DATA, 0, 1, message(b"m")), reset(1, ErrorCode.CANCEL))
    assert (receiver.received, receiver.status, receiver.breaches) == ([b"m"], Status.CANCELLED, [])


BROKEN_ANSWERS = {
    "a compressed message": lambda peer: peer.headers(1, *HEAD) + frame(DATA, 0, 1, message(b"m", is_compressed=True)),
    "a message without end": lambda peer: (
        peer.headers(1, *HEAD) + frame(DATA, 0, 1, b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    ),
    "data before the head": lambda _: frame(DATA, 0, 1, message(b"m")),
    "an end without trailers": lambda peer: peer.headers(1, *HEAD) + frame(DATA, END_STREAM, 1, message(b"m")),
    "two heads": lambda peer: peer.headers(1, *HEAD) + peer.headers(1, *HEAD),
    "an end in a message": lambda peer: (
        peer.headers(1, *HEAD) + frame(DATA, 0, 1, b"\0\0") + peer.headers(1, *OK, is_end=True)
    ),
    "a window of nothing": lambda _: window_update(1, 0),
    "a window beyond all": lambda _: window_update(1, 2**31 - 1) * 2,
}


@pytest.mark.parametrize("wire", BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS)
def test_a_broken_answer_ends_its_call_and_no_other(wire: Callable[[Peer], bytes]) -> None:
    ends = Ends()
    receiver, neighbour = ends.call(), ends.call()
    ends.server_sends(wire(ends.server))
    assert receiver.status is Status.INTERNAL
    assert not ends.client.is_broken
    ends.server_sends(ends.server.answer(3, b"fine"))
    assert (neighbour.status, neighbour.received) == (Status.OK, [b"fine"])


def test_an_answer_that_ends_before_its_request_has_gone_out_stops_the_request() -> None:
    ends = Ends({INITIAL_WINDOW: 10})
    receiver = ends.call(bytes(1000))
    ends.server_sends(ends.server.headers(1, *HEAD, ("grpc-status", "13"), is_end=True))
    assert receiver.outcome is not None
    assert not receiver.outcome.is_sent
    assert ends.server.resets == {1: ErrorCode.NO_ERROR}
    ends.server_sends(window_update(1, 1000))
    assert len(ends.server.requests[1].body) == 10


# Cancelling.


def test_cancelling_resets_the_stream_and_nothing_more_is_delivered(ends: Ends) -> None:
    receiver = ends.call()
    ends.server_sends(ends.server.headers(1, *HEAD))
    ends.cancel(receiver)
    ends.cancel(receiver)
    assert ends.server.resets == {1: ErrorCode.CANCEL}
    ends.server_sends(frame(DATA, 0, 1, message(b"late")), ends.server.headers(1, *OK, is_end=True), reset(1, 0))
    assert (receiver.received, receiver.outcome, receiver.breaches) == ([], None, [])
    assert not ends.client.is_broken


def test_header_blocks_of_calls_that_were_left_are_decoded_for_the_others_sake(ends: Ends) -> None:
    left, stayed = ends.call(), ends.call()
    ends.cancel(left)
    ends.server_sends(ends.server.headers(1, *HEAD, ("x-in-the-table", "value")))
    ends.server_sends(
        ends.server.headers(3, *HEAD, ("x-in-the-table", "value")), ends.server.headers(3, *OK, is_end=True)
    )
    assert stayed.status is Status.OK


def test_a_receiver_may_cancel_itself_and_its_neighbours_from_inside(ends: Ends) -> None:
    everyone: list[RecordingReceiver] = []

    def cancel_all(_: RecordingReceiver) -> None:
        for receiver in everyone:
            receiver.cancel()

    everyone += [ends.call(receiver=RecordingReceiver(cancel_all)) for _ in range(3)]
    ends.server_sends(*(ends.server.answer(stream_id, b"a", b"b") for stream_id in (1, 3, 5)))
    assert [receiver.received for receiver in everyone] == [[b"a", b"b"], [], []]
    assert [receiver.breaches for receiver in everyone] == [[], [], []]


@pytest.mark.parametrize("how", ["ended", "cancelled", "lost"])
def test_a_call_that_is_over_is_kept_by_nothing(how: str) -> None:
    ends = Ends({INITIAL_WINDOW: 10})
    receiver = ends.call(bytes(1000))
    assert isinstance(receiver.stream, H2Stream)
    stream = weakref.ref(receiver.stream) if hasattr(H2Stream, "__weakref__") else None
    held = weakref.ref(receiver)
    gc.disable()
    try:
        match how:
            case "ended":
                ends.server_sends(reset(1, ErrorCode.CANCEL))
            case "cancelled":
                ends.cancel(receiver)
            case _:
                ends.client.end_streams("lost")
        del receiver
        assert held() is None
        assert stream is None or stream() is None
    finally:
        gc.enable()
    assert not ends.client.streams
    assert not ends.client._unsent


# Going away.


def test_a_server_that_goes_away_finishes_what_it_has_seen_and_nothing_else(ends: Ends) -> None:
    receivers = [ends.call() for _ in range(3)]
    ends.server_sends(goaway(3, debug=b"max_age"))
    assert [receiver.status for receiver in receivers] == [None, None, Status.UNAVAILABLE]
    assert not ends.client.has_room
    ends.server_sends(ends.server.answer(1, b"m"), goaway(1))
    assert [receiver.status for receiver in receivers] == [Status.OK, Status.UNAVAILABLE, Status.UNAVAILABLE]
    assert not ends.client.is_broken


def test_going_away_in_two_steps_loses_nothing(ends: Ends) -> None:
    receiver = ends.call()
    ends.server_sends(goaway(2**31 - 1), frame(PING, 0, 0, b"goodbye!"))
    assert ends.server.acks == [b"goodbye!"]
    ends.server_sends(goaway(1), ends.server.answer(1, b"m"))
    assert receiver.status is Status.OK


def test_losing_the_connection_ends_every_call_once(ends: Ends) -> None:
    receivers = [ends.call() for _ in range(3)]
    ends.server_sends(ends.server.answer(3, b"m"))
    ends.client.end_streams("gone")
    ends.client.end_streams("gone")
    assert [receiver.status for receiver in receivers] == [Status.UNAVAILABLE, Status.OK, Status.UNAVAILABLE]
    assert [receiver.breaches for receiver in receivers] == [[], [], []]


def test_there_is_room_for_as_many_streams_as_the_server_allows() -> None:
    ends = Ends({MAX_STREAMS: 2})
    first = ends.call()
    assert ends.client.has_room
    ends.call()
    assert not ends.client.has_room
    ends.cancel(first)
    assert ends.client.has_room
    ends.server_sends(settings({MAX_STREAMS: 1}))
    assert not ends.client.has_room


def test_there_is_no_room_before_the_server_has_spoken() -> None:
    ends = Ends(sends_settings=False)
    assert not ends.client.has_room
    ends.server_sends(settings())
    assert ends.client.has_room


def test_when_stream_ids_run_out_it_drains(ends: Ends) -> None:
    ends.client._next_id = 2**31 - 3
    ends.call()
    assert ends.client.has_room
    last = ends.call()
    assert ends.client.is_draining
    assert not ends.client.has_room
    ends.server_sends(ends.server.answer(2**31 - 1, b"m"))
    assert last.status is Status.OK


# A server that breaks HTTP/2's rules.

VIOLATIONS = {
    "a frame beyond the maximum size": (frame(DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    "a frame of 16 MB announced": (b"\xff\xff\xff\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
    "data on a stream that never was": (frame(DATA, 0, 9, message(b"m")), ErrorCode.PROTOCOL_ERROR),
    "data on stream 0": (frame(DATA, 0, 0, message(b"m")), ErrorCode.PROTOCOL_ERROR),
    "data on a stream of the server's": (frame(DATA, 0, 2, message(b"m")), ErrorCode.PROTOCOL_ERROR),
    "headers on a stream that never was": (frame(HEADERS, END_HEADERS, 9, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    "a reset of a stream that never was": (reset(9, 0), ErrorCode.PROTOCOL_ERROR),
    "a window for a stream that never was": (window_update(9, 1), ErrorCode.PROTOCOL_ERROR),
    "more padding than frame": (frame(DATA, PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
    "padding without a length": (frame(DATA, PADDED, 1), ErrorCode.PROTOCOL_ERROR),
    "a push": (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a continuation of nothing": (frame(CONTINUATION, END_HEADERS, 1, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    "data within a header block": (
        frame(HEADERS, 0, 1, b"\x88") + frame(DATA, 0, 1, message(b"m")),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a continuation of another block": (
        frame(HEADERS, 0, 1, b"\x88") + frame(CONTINUATION, END_HEADERS, 3, b"\x88"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a header block without end": (
        frame(HEADERS, 0, 1, bytes(16_000)) + frame(CONTINUATION, 0, 1, bytes(16_384)) * 2,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "header fields without end": (
        frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x7f\xa9\x1e" + bytes(4000) + b"\xbe" * 100),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "an index beyond the table": (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\x0f"), ErrorCode.COMPRESSION_ERROR),
    "a header block cut short": (frame(HEADERS, END_HEADERS, 1, b"\x40\x05a"), ErrorCode.COMPRESSION_ERROR),
    "a table beyond what was offered": (
        frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\x03"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a priority cut short": (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    "a reset of three bytes": (frame(3, 0, 1, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    "a ping of nine bytes": (frame(PING, 0, 0, bytes(9)), ErrorCode.FRAME_SIZE_ERROR),
    "a ping on a stream": (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "settings on a stream": (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "settings cut short": (frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "an acknowledgement with content": (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    "an initial window beyond all": (settings({INITIAL_WINDOW: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    "an initial window too large for one that is wide": (
        window_update(1, 2**31 - 1 - DEFAULT_WINDOW + len(message(REQUEST))) + settings({INITIAL_WINDOW: 2**20}),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frames too small": (settings({MAX_FRAME: 16_383}), ErrorCode.PROTOCOL_ERROR),
    "frames too large": (settings({MAX_FRAME: 2**24}), ErrorCode.PROTOCOL_ERROR),
    "a server that wants pushes": (settings({2: 1}), ErrorCode.PROTOCOL_ERROR),
    "going away on a stream": (frame(7, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "going away without a reason": (frame(7, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "a window of three bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "a window of nothing": (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "a window beyond all": (window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorCode.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize(("wire", "code"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_broken_rule_ends_the_connection_and_every_call_on_it(wire: bytes, code: ErrorCode) -> None:
    ends = Ends()
    receivers = [ends.call(), ends.call()]
    ends.server_sends(wire)
    assert ends.server.goaways == [code]
    assert ends.client.is_broken
    assert [receiver.status for receiver in receivers] == [Status.UNAVAILABLE] * 2
    ends.server_sends(ends.server.answer(1, b"m"))
    assert [receiver.breaches for receiver in receivers] == [[], []]
    assert [receiver.received for receiver in receivers] == [[], []]


@pytest.mark.parametrize("wire", [frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0), window_update(0, 1)])
def test_a_server_that_does_not_begin_with_its_settings_is_none(wire: bytes) -> None:
    ends = Ends(sends_settings=False)
    ends.server_sends(wire)
    assert ends.server.goaways == [ErrorCode.PROTOCOL_ERROR]


def test_more_data_than_a_window_allows_ends_the_connection(ends: Ends) -> None:
    receiver = ends.call()
    assert isinstance(receiver.stream, H2Stream)
    ends.server_sends(ends.server.headers(1, *HEAD))
    receiver.stream.credit = 10
    ends.server_sends(frame(DATA, 0, 1, message(bytes(100))))
    assert ends.server.goaways == [ErrorCode.FLOW_CONTROL_ERROR]
