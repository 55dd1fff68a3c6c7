"""One gRPC call on an HTTP/2 connection: its request on the way out, its messages and its end on the way in.

Knows the content of frames, and no other stream. `deliver` calls the receiver after the whole read is parsed, so that
messages of one read are delivered together, and the receiver may cancel any stream.
"""

import struct
from collections.abc import Mapping
from typing import Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

from gateway.backends.rpc.call import Outcome, Receiver, Status

PREFIX = struct.Struct(">?L")  # whether the message is compressed, its length
PREFIX_BYTES = PREFIX.size
# Responses hold a handful of ids. This limit only keeps a broken server from filling the memory.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# How many bytes of one answer may be under way. The window is topped up as they arrive, so it only bounds a burst.
WINDOW = 4 * 1024 * 1024

# doc/http-grpc-status-mapping.md of gRPC.
STATUS_OF_HTTP = {
    b"400": Status.INTERNAL,
    b"401": Status.UNAUTHENTICATED,
    b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED,
    b"429": Status.UNAVAILABLE,
    b"502": Status.UNAVAILABLE,
    b"503": Status.UNAVAILABLE,
    b"504": Status.UNAVAILABLE,
}

STATUS_OF_NUMBER = {str(int(status)).encode(): status for status in Status}


class Holder(Protocol):
    """The owner of a stream: the client where it waits, or the connection where it is open."""

    def cancel(self, stream: "H2Stream") -> None: ...


# How the server ended a call; None if this frame did not end it.
Ending: TypeAlias = tuple[Status, str] | None


class H2Stream:
    """A call, from its start to its end; `id` is 0 while it waits for a connection.

    `send_window`, `credit`: how many bytes may be sent and received until a window is enlarged. `receiver`: None after
    its `closed` was called, or the call was cancelled.
    """

    __slots__ = (
        "_has_head",
        "_incomplete",
        "body",
        "credit",
        "holder",
        "id",
        "is_between_messages",
        "messages",
        "outcome",
        "path",
        "receiver",
        "send_window",
    )

    def __init__(self, path: str, request: bytes, receiver: Receiver) -> None:
        self.path = path
        self.id = 0
        self.body = memoryview(PREFIX.pack(False, len(request)) + request)  # the part that is not sent yet
        self.send_window = 0
        self.credit = WINDOW
        self.holder: Holder | None = None
        self.messages: list[bytes] = []
        self.outcome: Outcome | None = None
        self.receiver: Receiver | None = receiver
        self._incomplete = bytearray()  # the beginning of a message whose rest has not arrived
        self._has_head = False
        self.is_between_messages = False  # the next byte of data is the first of a message

    def __repr__(self) -> str:
        return f"<H2Stream {self.id} {self.path} unsent={len(self.body)} {self.outcome or 'open'}>"

    def cancel(self) -> None:
        """Makes the server stop, and releases everything; idempotent, and harmless after the end."""
        self.receiver = None
        holder, self.holder = self.holder, None
        if holder is not None:
            holder.cancel(self)

    def end(self, status: Status, detail: str) -> None:
        """Set the outcome. The owner of the stream calls this, and `deliver` afterwards."""
        self.outcome = Outcome(status, detail, is_sent=not self.body)
        self.release()

    def release(self) -> None:
        """Drop everything that takes memory."""
        self.holder = None
        self.body = memoryview(b"")
        self._incomplete = bytearray()

    def deliver(self) -> None:
        """Pass new messages, and the outcome if there is one, to the receiver."""
        if self.messages:
            messages, self.messages = self.messages, []
            if self.receiver is not None:
                self.receiver.receive(messages)
        # Checked again: a receiver may cancel from inside receive().
        if self.outcome is not None and self.receiver is not None:
            receiver, self.receiver = self.receiver, None
            receiver.closed(self.outcome)

    # Content of the stream's frames.

    def receive_data(self, data: bytes) -> Ending:
        """Reads the content of a DATA frame."""
        if not self._has_head:
            return Status.INTERNAL, "data before a head"
        self._incomplete += data
        ending = self._split_messages()
        self.is_between_messages = not self._incomplete
        return ending

    def _split_messages(self) -> Ending:
        part, at = self._incomplete, 0
        while len(part) - at >= PREFIX_BYTES:
            is_compressed, length = PREFIX.unpack_from(part, at)
            if is_compressed:
                return Status.INTERNAL, "a compressed message, which was not offered"
            if length > MAX_MESSAGE_BYTES:
                return Status.INTERNAL, f"a message of {length} bytes"
            end = at + PREFIX_BYTES + length
            if end > len(part):
                break
            self.messages.append(bytes(part[at + PREFIX_BYTES : end]))
            at = end
        del part[:at]
        return None

    def receive_headers(self, fields: Mapping[bytes, bytes], *, is_end: bool) -> Ending:
        """Reads a HEADERS frame's content: the answer's head, its trailers, or both in one if there is no message."""
        http_status = fields.get(b":status", b"200" if self._has_head else b"")
        if is_end:
            return self._end_by(fields, http_status)
        if self._has_head:
            return Status.INTERNAL, "a second head"
        if len(http_status) == 3 and http_status.startswith(b"1"):  # an interim answer
            return None
        self._has_head = self.is_between_messages = True
        return _check_head(fields, http_status)

    def _end_by(self, fields: Mapping[bytes, bytes], http_status: bytes) -> Ending:
        status, detail = status_of_trailers(fields, http_status)
        if status is Status.OK and self._incomplete:
            return Status.INTERNAL, "ended in the middle of a message"
        return status, detail


def _check_head(fields: Mapping[bytes, bytes], http_status: bytes) -> Ending:
    if http_status != b"200":
        return status_of_http(http_status), f"HTTP status {http_status.decode('latin-1')}"
    content_type = fields.get(b"content-type", b"")
    if not content_type.startswith(b"application/grpc"):
        return Status.UNKNOWN, f"content-type {content_type.decode('latin-1')}"
    return None


def status_of_http(status: bytes) -> Status:
    """Returns the gRPC status for an HTTP status without any grpc-status."""
    return STATUS_OF_HTTP.get(status, Status.UNKNOWN)


def status_of_trailers(fields: Mapping[bytes, bytes], http_status: bytes) -> tuple[Status, str]:
    """Returns the status and decoded grpc-message of a call that ended with these header fields."""
    number = fields.get(b"grpc-status")
    if number is None:
        return status_of_http(http_status), f"no grpc-status, HTTP status {http_status.decode('latin-1')}"
    message = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
    return STATUS_OF_NUMBER.get(number, Status.UNKNOWN), message
