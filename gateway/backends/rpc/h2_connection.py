"""One HTTP/2 connection as a gRPC client sees it (RFC 9113): bytes in by `receive`, bytes out by `take`; no socket.

Frames become calls on the streams they belong to; those streams' receivers hear of them once the whole read is walked
through.
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar

from hpack import Decoder, Encoder, HPACKError

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
from gateway.backends.rpc.status import Status, of_reset

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 32 * 1024  # of one header block, and of the fields in it
PING_BYTES = 8
MESSAGE_HEAD = struct.Struct(">BHBBL?L")  # h2_frames.HEAD, h2_stream.PREFIX
MESSAGE_HEAD_BYTES = MESSAGE_HEAD.size
WHOLE_HEAD = struct.Struct(">LBL?L")  # the same, a frame's length and type in one number


class Blocks:
    """Request heads, encoded. Without a dynamic table every block stands for itself and can be kept, one per path.

    The first block on a connection says that there will be no table, which whatever limit the server sets allows.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority
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
            (":scheme", "http"),
            (":path", path),
            (":authority", self._authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-accept-encoding", "identity"),
            ("user-agent", "crossover"),
        ])


class Connection:
    """A client's end. Whoever owns it writes what `take` gives after every call, and closes it when `is_broken`.

    `is_greeted`: the server's SETTINGS have come. `is_draining`: no new streams, those open go on.
    """

    def __init__(self, authority: str) -> None:
        self.streams: dict[int, H2Stream] = {}
        self.is_greeted = False
        self.is_draining = False
        self.is_broken = False
        self._authority = authority
        self._blocks = Blocks(authority)
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._rest = b""  # of a frame that is not complete
        self._block: tuple[int, int, bytearray] | None = None  # stream id, flags and bytes until END_HEADERS
        self._stirred: list[H2Stream] = []  # have something to deliver
        self._next_id = 1
        self._max_streams = MAX_STREAM_ID
        self._max_frame = SMALLEST_MAX_FRAME
        self._first_window = DEFAULT_WINDOW
        self._send_window = DEFAULT_WINDOW
        self._unsent: deque[H2Stream] = deque()  # whose requests have not gone out completely
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

    # What its owner asks of it.

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened now."""
        is_open = self.is_greeted and not self.is_draining and not self.is_broken
        return is_open and len(self.streams) < self._max_streams

    def open(self, stream: H2Stream) -> None:
        """Only with `has_room`."""
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
        """The caller wants no more of it, and its receiver hears no more."""
        if stream.id in self.streams:
            self._out.append(reset(stream.id, ErrorCode.CANCEL))
            self._remove(stream)
            stream.let_go()

    def receive(self, data: bytes) -> bool:
        """What came from the server, cut anywhere. Receivers hear of it before this returns.

        False: nothing but messages came, so there is nothing to write and nothing has changed.
        """
        # A paced answer comes as reads of one DATA frame with one message. That way is all in this place: every call
        # more would cost as much as what is done here.
        if self._rest or self._block is not None or len(data) < MESSAGE_HEAD_BYTES:
            return self._walk_all(data)
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
            return self._walk_all(data)
        stream.credit -= length
        self._credit -= length
        if (receiver := stream.receiver) is not None:
            receiver.messages((data[MESSAGE_HEAD_BYTES:],))
        return False

    def _walk_all(self, data: bytes) -> bool:
        if self.is_broken:
            return False
        if self._rest:
            data = self._rest + data
        at = self._walk_messages(data, 0)
        is_eventful = at < len(data) or self._rest != b""
        if is_eventful:
            try:
                self._rest = data[self._walk(data, at) :]
            except Violation as exc:
                self._break_off(exc)
        stirred, self._stirred = self._stirred, []
        for stream in stirred:
            stream.deliver()
        return is_eventful

    def take(self) -> bytes:
        """What is to be written now, possibly nothing."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return b"".join(out)

    def pause(self) -> None:
        """The socket takes no more for now: requests wait here, where they can still be cancelled."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._send_what_fits()

    def drain(self) -> None:
        self.is_draining = True

    def lose(self, why: str) -> None:
        """There is no connection any more: every stream ends as UNAVAILABLE."""
        self.is_broken = True
        self._rest = b""
        for stream in tuple(self.streams.values()):
            self._end(stream, Status.UNAVAILABLE, why)
        stirred, self._stirred = self._stirred, []
        for stream in stirred:
            stream.deliver()

    def say_goodbye(self) -> None:
        if not self.is_broken:
            self._out.append(goaway(ErrorCode.NO_ERROR))

    # Walking through frames.

    def _walk_messages(self, data: bytes, at: int) -> int:
        """Through DATA frames that hold one whole message each; returns where something else begins.

        Nearly all frames of a token stream are such. They could as well take the way of all others, at twice the cost.
        """
        if self._block is not None:
            return at
        streams, stirred, size = self.streams, self._stirred, len(data)
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
                stirred.append(stream)
            stream.messages.append(data[at + MESSAGE_HEAD_BYTES : end])
            at = end
        return at

    def _walk(self, data: bytes, at: int) -> int:
        """Through all complete frames; returns where the first incomplete one begins. Raises Violation."""
        size = len(data)
        while size - at >= HEAD_BYTES:
            high, length, kind, flags, stream_id = HEAD.unpack_from(data, at)
            if high or length > SMALLEST_MAX_FRAME:  # we allow no larger ones
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {high << 16 | length} bytes")
            end = at + HEAD_BYTES + length
            if end > size:
                break
            self._take_frame(kind, flags, stream_id & STREAM_ID_MASK, data[at + HEAD_BYTES : end])
            at = self._walk_messages(data, end)
        return at

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.is_greeted and (kind != SETTINGS or flags & ACK):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the server did not begin with its settings")
        if self._block is not None and kind != CONTINUATION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        handle = self._HANDLERS.get(kind)
        if handle is not None:  # frames of unknown types are to be ignored
            handle(self, flags, stream_id, payload)

    # One frame each.

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_was_open(stream_id)
        self._credit = self._spend(0, self._credit, MAX_WINDOW, len(payload))
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.credit = self._spend(stream_id, stream.credit, WINDOW, len(payload))
        self._stirred.append(stream)  # having it twice does no harm
        ending = stream.take(without_padding(flags, payload))
        if ending is None and flags & END_STREAM:
            ending = Status.INTERNAL, "ended without a status"
        if ending is not None:
            self._end_early(stream, *ending, is_over=bool(flags & END_STREAM))

    def _spend(self, stream_id: int, credit: int, window: int, length: int) -> int:
        """What is left of a receive window; it is opened again when half of it is gone."""
        credit -= length
        if credit < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        if credit >= window // 2:
            return credit
        self._out.append(window_update(stream_id, window - credit))
        return window

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_was_open(stream_id)
        payload = without_padding(flags, payload)
        if flags & HAS_PRIORITY:
            _check_size(len(payload) >= 5)
            payload = payload[5:]
        self._block = (stream_id, flags, bytearray(payload))
        self._close_block(flags)

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        self._block[2].extend(payload)
        self._close_block(flags)

    def _close_block(self, flags: int) -> None:
        assert self._block is not None
        stream_id, first_flags, block = self._block
        if len(block) > MAX_HEADER_BYTES:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if not flags & END_HEADERS:
            return
        self._block = None
        fields = self._decode(bytes(block))  # also of streams we have left: the table is the connection's
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        is_end = bool(first_flags & END_STREAM)
        ending = stream.take_head(fields, is_end=is_end)
        if ending is not None:
            self._end_early(stream, *ending, is_over=is_end)

    def _decode(self, block: bytes) -> Mapping[bytes, bytes]:
        try:
            return {bytes(name): bytes(value) for name, value in self._decoder.decode(block, raw=True)}
        except (HPACKError, LookupError, ValueError) as exc:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "a header block that cannot be decoded") from exc

    def _take_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_size(len(payload) == NUMBER.size)
        self._check_was_open(stream_id)
        (code,) = NUMBER.unpack(payload)
        if (stream := self.streams.get(stream_id)) is not None:
            self._end(stream, of_reset(code), f"reset with HTTP/2 error {code}")

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_is_zero(stream_id)
        if flags & ACK:
            _check_size(not payload)
            return
        _check_size(len(payload) % SETTING.size == 0)
        for setting, value in SETTING.iter_unpack(payload):
            self._set(setting, value)
        self.is_greeted = True
        self._out.append(frame(SETTINGS, ACK, 0))
        self._send_what_fits()

    def _set(self, setting: int, value: int) -> None:
        if setting == Setting.MAX_CONCURRENT_STREAMS:
            self._max_streams = value
        elif setting == Setting.INITIAL_WINDOW_SIZE:
            self._resize_windows(value)
        elif setting == Setting.MAX_FRAME_SIZE:
            if not SMALLEST_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                raise Violation(ErrorCode.PROTOCOL_ERROR, f"a maximum frame size of {value}")
            self._max_frame = value
        elif setting == Setting.ENABLE_PUSH and value:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a server that would be pushed to")

    def _resize_windows(self, size: int) -> None:
        if size > MAX_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {size}")
        change, self._first_window = size - self._first_window, size
        for stream in self.streams.values():
            stream.send_window += change  # may well be negative then
            _check_window(stream.send_window)

    def _take_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a push, which was refused")

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_is_zero(stream_id)
        _check_size(len(payload) == PING_BYTES)
        if not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))

    def _take_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_is_zero(stream_id)
        _check_size(len(payload) >= GOAWAY_HEAD.size)
        last_id, code = GOAWAY_HEAD.unpack_from(payload)
        logger.debug("%s goes away (HTTP/2 error %d): %r", self._authority, code, payload[GOAWAY_HEAD.size :])
        self.is_draining = True
        for stream in tuple(self.streams.values()):
            if stream.id > last_id & STREAM_ID_MASK:
                self._end(stream, Status.UNAVAILABLE, "the server goes away and has not looked at it")

    def _take_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
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
        if not increment or stream.send_window > MAX_WINDOW:  # a fault of this stream's only
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            self._out.append(reset(stream.id, code))
            self._end(stream, Status.INTERNAL, "a window that cannot be")

    _HANDLERS: ClassVar[Mapping[int, Callable[["Connection", int, int, bytes], None]]] = {
        DATA: _take_data,
        HEADERS: _take_headers,
        RST_STREAM: _take_reset,
        SETTINGS: _take_settings,
        PUSH_PROMISE: _take_push,
        PING: _take_ping,
        GOAWAY: _take_goaway,
        WINDOW_UPDATE: _take_window_update,
        CONTINUATION: _take_continuation,
    }

    def _check_was_open(self, stream_id: int) -> None:
        """Frames of streams that are over may still be under way; of others there can be none."""
        if not stream_id & 1 or stream_id >= self._next_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which never was")

    # Sending requests.

    def _send_what_fits(self) -> None:
        """A frame of each request in turn, so that a long one does not hold up the others, until windows are full."""
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
        """End a stream by what the server has said. The server is told, if it goes on or would wait for more of us."""
        if stream.body or not is_over:
            self._out.append(reset(stream.id, ErrorCode.NO_ERROR if is_over else ErrorCode.CANCEL))
        self._end(stream, status, detail)

    def _end(self, stream: H2Stream, status: Status, detail: str) -> None:
        self._remove(stream)
        self._stirred.append(stream)
        stream.end(status, detail)

    def _remove(self, stream: H2Stream) -> None:
        del self.streams[stream.id]
        if stream.body:
            self._unsent.remove(stream)

    def _break_off(self, violation: Violation) -> None:
        logger.warning("%s sent %s (HTTP/2 %s)", self._authority, violation, violation.code.name)
        self._out.append(goaway(violation.code))
        self.is_broken = True
        self._rest = b""
        for stream in tuple(self.streams.values()):
            self._end(stream, Status.UNAVAILABLE, f"the server sent {violation}")


def _check_size(is_right: bool) -> None:
    if not is_right:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a frame of the wrong size")


def _check_stream_is_zero(stream_id: int) -> None:
    if stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame of the connection's on a stream")


def _check_increment(increment: int) -> None:
    if not increment:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a window update of nothing")


def _check_window(size: int) -> None:
    if size > MAX_WINDOW:
        raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window that cannot be")
