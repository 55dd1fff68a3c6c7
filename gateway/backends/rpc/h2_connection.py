"""One HTTP/2 connection of a gRPC client (RFC 9113): bytes in by `receive`, bytes out by `data_to_send`; no socket.

Each frame becomes a call on its stream. The streams' receivers are called after the whole read is parsed.
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar

from hpack import Decoder, Encoder, HPACKError

from gateway.backends.rpc.call import Status
from gateway.backends.rpc.h2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GOAWAY_HEAD,
    HAS_PRIORITY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    LARGEST_MAX_FRAME,
    MAX_STREAM_ID,
    MAX_WINDOW,
    NUMBER,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    SMALLEST_MAX_FRAME,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    Violation,
    frame,
    goaway,
    head,
    reset,
    settings,
    window_update,
    without_padding,
)
from gateway.backends.rpc.h2_stream import PREFIX_BYTES, WINDOW, H2Stream

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 32 * 1024  # of one header block, and of the fields in it
PING_BYTES = 8
MESSAGE_HEAD = struct.Struct(">BHBBL?L")  # h2_frames.HEAD and h2_stream.PREFIX
MESSAGE_HEAD_BYTES = MESSAGE_HEAD.size
WHOLE_HEAD = struct.Struct(">LBL?L")  # as MESSAGE_HEAD, with the frame's length and type in one number

# doc/PROTOCOL-HTTP2.md of gRPC.
STATUS_OF_RESET = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
    ErrorCode.STREAM_CLOSED: Status.UNKNOWN,
}


class HeaderBlocks:
    """Encoded request heads. Without a dynamic table every block is independent, and one per path is kept.

    The first block on a connection sets the table's size to 0, which every limit of a server allows.
    """

    def __init__(self, authority: str, scheme: str) -> None:
        self._authority = authority
        self._scheme = scheme
        self._encoder = Encoder()
        self._encoder.header_table_size = 0
        self._by_path: dict[str, bytes] = {}

    def __getitem__(self, path: str) -> bytes:
        if (block := self._by_path.get(path)) is not None:
            return block
        is_first = not self._by_path
        block = self._encode(path)
        self._by_path[path] = self._encode(path) if is_first else block
        return block

    def _encode(self, path: str) -> bytes:
        return self._encoder.encode([
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", path),
            (":authority", self._authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-accept-encoding", "identity"),
            ("user-agent", "crossover"),
        ])


class Connection:
    """A connection's client end. After every call its owner writes `data_to_send`; if `is_broken`, closes the socket.

    `has_settings`: the server's SETTINGS have arrived. `is_draining`: no new streams, open streams continue.
    """

    def __init__(self, authority: str, scheme: str = "http") -> None:
        self.streams: dict[int, H2Stream] = {}
        self.has_settings = False
        self.is_draining = False
        self.is_broken = False
        self._authority = authority
        self._blocks = HeaderBlocks(authority, scheme)
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._rest = b""  # the beginning of an incomplete frame
        self._block: tuple[int, int, bytearray] | None = None  # stream id, flags and bytes until END_HEADERS
        self._to_deliver: list[H2Stream] = []  # streams with messages or an outcome for their receivers
        self._next_id = 1
        self._max_streams = MAX_STREAM_ID
        self._max_frame = SMALLEST_MAX_FRAME
        self._first_window = DEFAULT_WINDOW
        self._send_window = DEFAULT_WINDOW
        self._unsent: deque[H2Stream] = deque()  # streams whose requests are not completely sent
        self._is_paused = False
        self._credit = MAX_WINDOW
        ours = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        self._out: list[bytes | memoryview] = [PREFACE, settings(ours), window_update(0, MAX_WINDOW - DEFAULT_WINDOW)]

    def __repr__(self) -> str:
        state = "broken" if self.is_broken else "draining" if self.is_draining else "open"
        return f"<Connection {state} streams={len(self.streams)} unsent={len(self._unsent)}>"

    # Called by the owner.

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened now."""
        is_open = self.has_settings and not self.is_draining and not self.is_broken
        return is_open and len(self.streams) < self._max_streams

    def open(self, stream: H2Stream) -> None:
        """Sends the stream's request. Call it only if `has_room`."""
        stream.id = self._next_id
        self._next_id += 2
        self.is_draining = self._next_id > MAX_STREAM_ID
        stream.send_window = self._first_window
        self.streams[stream.id] = stream
        block = self._blocks[stream.path]
        self._out.append(frame(HEADERS, END_HEADERS, stream.id, block))
        self._unsent.append(stream)
        self._send_what_fits()

    def cancel(self, stream: H2Stream) -> None:
        """Reset the stream; its receiver is not called any more."""
        if stream.id in self.streams:
            self._out.append(reset(stream.id, ErrorCode.CANCEL))
            self._remove(stream)
            stream.release()

    def receive(self, data: bytes) -> bool:
        """Parses bytes from the server, cut anywhere, and calls the receivers.

        Returns False if there were only messages: there is nothing to write and nothing else has changed.
        """
        # Each read of a paced answer is one DATA frame with one message. This case is handled without further calls,
        # since each would cost as much as the work done here.
        if self._rest or self._block is not None or len(data) < MESSAGE_HEAD_BYTES:
            return self._read_all(data)
        kind, flags, stream_id, is_compressed, message = WHOLE_HEAD.unpack_from(data)
        length = message + PREFIX_BYTES
        stream = self.streams.get(stream_id)
        if (
            stream is None
            or kind != length << 8 | DATA
            or not HEAD_BYTES + length == len(data) <= HEAD_BYTES + SMALLEST_MAX_FRAME
            or flags
            or is_compressed
            or not stream.is_between_messages
            or length > stream.credit - WINDOW // 2
            or length > self._credit - MAX_WINDOW // 2
        ):
            return self._read_all(data)
        stream.credit -= length
        self._credit -= length
        if (receiver := stream.receiver) is not None:
            receiver.receive((data[MESSAGE_HEAD_BYTES:],))
        return False

    def _read_all(self, data: bytes) -> bool:
        if self.is_broken:
            return False
        if self._rest:
            data = self._rest + data
        at = self._read_messages(data, 0)
        is_eventful = at < len(data) or self._rest != b""
        if is_eventful:
            try:
                self._rest = data[self._read_frames(data, at) :]
            except Violation as exc:
                self._fail(exc)
        to_deliver, self._to_deliver = self._to_deliver, []
        for stream in to_deliver:
            stream.deliver()
        return is_eventful

    def data_to_send(self) -> bytes:
        """Returns the bytes to write now, possibly none."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return b"".join(out)

    def pause(self) -> None:
        """Stops sending, since the socket's buffer is full: requests wait here, where they can still be cancelled."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._send_what_fits()

    def drain(self) -> None:
        self.is_draining = True

    def end_streams(self, why: str) -> None:
        """End every stream with UNAVAILABLE: the connection is closed or lost."""
        self.is_broken = True
        self._rest = b""
        for stream in tuple(self.streams.values()):
            self._end(stream, Status.UNAVAILABLE, why)
        to_deliver, self._to_deliver = self._to_deliver, []
        for stream in to_deliver:
            stream.deliver()

    def send_goaway(self) -> None:
        if not self.is_broken:
            self._out.append(goaway(ErrorCode.NO_ERROR))

    # Parsing frames.

    def _read_messages(self, data: bytes, at: int) -> int:
        """Reads DATA frames that hold one whole message each; returns where anything else begins.

        Nearly all frames of a token stream are like this. _read_frames reads them too, at twice the cost.
        """
        if self._block is not None:
            return at
        streams, to_deliver, size = self.streams, self._to_deliver, len(data)
        while size - at >= MESSAGE_HEAD_BYTES:
            high, length, kind, flags, stream_id, is_compressed, message = MESSAGE_HEAD.unpack_from(data, at)
            end = at + HEAD_BYTES + length
            if kind or flags or high or is_compressed or length != message + PREFIX_BYTES or end > size:
                break
            stream = streams.get(stream_id)
            if stream is None or not stream.is_between_messages or length > stream.credit - WINDOW // 2:
                break
            if length > SMALLEST_MAX_FRAME or length > self._credit - MAX_WINDOW // 2:
                break
            stream.credit -= length
            self._credit -= length
            if not stream.messages:
                to_deliver.append(stream)
            stream.messages.append(data[at + MESSAGE_HEAD_BYTES : end])
            at = end
        return at

    def _read_frames(self, data: bytes, at: int) -> int:
        """Reads all complete frames; returns where the first incomplete frame begins. Raises Violation."""
        size = len(data)
        while size - at >= HEAD_BYTES:
            high, length, kind, flags, stream_id = HEAD.unpack_from(data, at)
            if high or length > SMALLEST_MAX_FRAME:  # we allow no larger frames
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {high << 16 | length} bytes")
            end = at + HEAD_BYTES + length
            if end > size:
                break
            self._receive_frame(kind, flags, stream_id & STREAM_ID_MASK, data[at + HEAD_BYTES : end])
            at = self._read_messages(data, end)
        return at

    def _receive_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.has_settings and (kind != SETTINGS or flags & ACK):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the server did not begin with its settings")
        if self._block is not None and kind != CONTINUATION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        handle = self._HANDLERS.get(kind)
        if handle is not None:  # RFC 9113 5.5: frames of unknown types have to be ignored
            handle(self, flags, stream_id, payload)

    # One method per type of frame.

    def _receive_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_was_open(stream_id)
        self._credit = self._spend(0, self._credit, MAX_WINDOW, len(payload))
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.credit = self._spend(stream_id, stream.credit, WINDOW, len(payload))
        self._to_deliver.append(stream)  # a second entry is harmless
        ending = stream.receive_data(without_padding(flags, payload))
        if ending is None and flags & END_STREAM:
            ending = Status.INTERNAL, "ended without a status"
        if ending is not None:
            self._end_early(stream, *ending, is_over=bool(flags & END_STREAM))

    def _spend(self, stream_id: int, credit: int, window: int, length: int) -> int:
        """Returns the remaining credit of a receive window; enlarges the window when half of it is spent."""
        credit -= length
        if credit < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        if credit >= window // 2:
            return credit
        self._out.append(window_update(stream_id, window - credit))
        return window

    def _receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_was_open(stream_id)
        payload = without_padding(flags, payload)
        if flags & HAS_PRIORITY:
            _check_size(len(payload) >= 5)
            payload = payload[5:]
        self._block = (stream_id, flags, bytearray(payload))
        self._close_block(flags)

    def _receive_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a continuation without a header block")
        self._block[2].extend(payload)
        self._close_block(flags)

    def _close_block(self, flags: int) -> None:
        assert self._block is not None
        stream_id, first_flags, block = self._block
        if len(block) > MAX_HEADER_BYTES:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block beyond the limit")
        if not flags & END_HEADERS:
            return
        self._block = None
        fields = self._decode(bytes(block))  # also for cancelled streams: the table belongs to the connection
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        is_end = bool(first_flags & END_STREAM)
        ending = stream.receive_headers(fields, is_end=is_end)
        if ending is not None:
            self._end_early(stream, *ending, is_over=is_end)

    def _decode(self, block: bytes) -> Mapping[bytes, bytes]:
        try:
            return {bytes(name): bytes(value) for name, value in self._decoder.decode(block, raw=True)}
        except (HPACKError, LookupError, ValueError) as exc:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "a header block that cannot be decoded") from exc

    def _receive_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_size(len(payload) == NUMBER.size)
        self._check_was_open(stream_id)
        (code,) = NUMBER.unpack(payload)
        if (stream := self.streams.get(stream_id)) is not None:
            self._end(stream, status_of_reset(code), f"reset with HTTP/2 error {code}")

    def _receive_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_is_zero(stream_id)
        if flags & ACK:
            _check_size(not payload)
            return
        _check_size(len(payload) % SETTING.size == 0)
        for setting, value in SETTING.iter_unpack(payload):
            self._apply_setting(setting, value)
        self.has_settings = True
        self._out.append(frame(SETTINGS, ACK, 0))
        self._send_what_fits()

    def _apply_setting(self, setting: int, value: int) -> None:
        if setting == Setting.MAX_CONCURRENT_STREAMS:
            self._max_streams = value
        elif setting == Setting.INITIAL_WINDOW_SIZE:
            self._resize_windows(value)
        elif setting == Setting.MAX_FRAME_SIZE:
            if not SMALLEST_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                raise Violation(ErrorCode.PROTOCOL_ERROR, f"a maximum frame size of {value}")
            self._max_frame = value
        elif setting == Setting.ENABLE_PUSH and value:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH, which only a client may set")

    def _resize_windows(self, size: int) -> None:
        if size > MAX_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {size}")
        change, self._first_window = size - self._first_window, size
        for stream in self.streams.values():
            stream.send_window += change  # may become negative
            _check_window(stream.send_window)

    def _receive_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a push, which our settings forbid")

    def _receive_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_is_zero(stream_id)
        _check_size(len(payload) == PING_BYTES)
        if not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))

    def _receive_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_is_zero(stream_id)
        _check_size(len(payload) >= GOAWAY_HEAD.size)
        last_id, code = GOAWAY_HEAD.unpack_from(payload)
        logger.debug("%s is going away (HTTP/2 error %d): %r", self._authority, code, payload[GOAWAY_HEAD.size :])
        self.is_draining = True
        for stream in tuple(self.streams.values()):
            if stream.id > last_id & STREAM_ID_MASK:
                self._end(stream, Status.UNAVAILABLE, "the server is going away and has not processed it")

    def _receive_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_size(len(payload) == NUMBER.size)
        increment = NUMBER.unpack(payload)[0] & MAX_WINDOW
        if stream_id:
            self._check_was_open(stream_id)
            if (stream := self.streams.get(stream_id)) is not None:
                self._widen(stream, increment)
        else:
            _check_increment(increment)
            self._send_window += increment
            _check_window(self._send_window)
        self._send_what_fits()

    def _widen(self, stream: H2Stream, increment: int) -> None:
        stream.send_window += increment
        if not increment or stream.send_window > MAX_WINDOW:  # only this stream fails
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            self._out.append(reset(stream.id, code))
            self._end(stream, Status.INTERNAL, "a window beyond the limit")

    _HANDLERS: ClassVar[Mapping[int, Callable[["Connection", int, int, bytes], None]]] = {
        DATA: _receive_data,
        HEADERS: _receive_headers,
        RST_STREAM: _receive_reset,
        SETTINGS: _receive_settings,
        PUSH_PROMISE: _receive_push,
        PING: _receive_ping,
        GOAWAY: _receive_goaway,
        WINDOW_UPDATE: _receive_window_update,
        CONTINUATION: _receive_continuation,
    }

    def _check_was_open(self, stream_id: int) -> None:
        """Raises Violation for a stream never opened; frames of streams that are over may still be under way."""
        if not stream_id & 1 or stream_id >= self._next_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which was never opened")

    # Sending requests.

    def _send_what_fits(self) -> None:
        """Send a frame of each request in turn, so that no long request delays the others, until windows are full."""
        unsent, blocked = self._unsent, 0
        while blocked < len(unsent) and self._send_window > 0 and not self._is_paused:
            stream = unsent.popleft()
            if stream.send_window <= 0:
                blocked += 1
            else:
                blocked = 0
                self._send_frame(stream)
            if stream.body:
                unsent.append(stream)

    def _send_frame(self, stream: H2Stream) -> None:
        length = min(len(stream.body), stream.send_window, self._send_window, self._max_frame)
        part, stream.body = stream.body[:length], stream.body[length:]
        self._out.append(head(DATA, 0 if stream.body else END_STREAM, stream.id, length))
        self._out.append(part)
        stream.send_window -= length
        self._send_window -= length

    # Ends.

    def _end_early(self, stream: H2Stream, status: Status, detail: str, *, is_over: bool) -> None:
        """End a stream with the server's status. Reset it if the server goes on, or waits for the rest of a request."""
        if stream.body or not is_over:
            self._out.append(reset(stream.id, ErrorCode.NO_ERROR if is_over else ErrorCode.CANCEL))
        self._end(stream, status, detail)

    def _end(self, stream: H2Stream, status: Status, detail: str) -> None:
        self._remove(stream)
        self._to_deliver.append(stream)
        stream.end(status, detail)

    def _remove(self, stream: H2Stream) -> None:
        del self.streams[stream.id]
        if stream.body:
            self._unsent.remove(stream)

    def _fail(self, violation: Violation) -> None:
        logger.warning("%s sent %s (HTTP/2 %s)", self._authority, violation, violation.code.name)
        self._out.append(goaway(violation.code))
        self.is_broken = True
        self._rest = b""
        for stream in tuple(self.streams.values()):
            self._end(stream, Status.UNAVAILABLE, f"the server sent {violation}")


def status_of_reset(code: int) -> Status:
    """Returns the gRPC status for RST_STREAM with this error code."""
    try:
        return STATUS_OF_RESET.get(ErrorCode(code), Status.INTERNAL)
    except ValueError:
        return Status.UNKNOWN


def _check_size(is_right: bool) -> None:
    if not is_right:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a frame of the wrong size")


def _check_stream_is_zero(stream_id: int) -> None:
    if stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame for the connection on a stream")


def _check_increment(increment: int) -> None:
    if not increment:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a window update by 0")


def _check_window(size: int) -> None:
    if size > MAX_WINDOW:
        raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window beyond the limit")
