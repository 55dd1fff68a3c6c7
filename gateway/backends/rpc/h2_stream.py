"""One gRPC call on an HTTP/2 connection: its request on the way out, its messages and its end on the way in.

Knows no frames but their content and no other stream. What the receiver hears, it hears in `deliver`, after the whole
read has been walked through: several messages that came together go on together, and a receiver may cancel anything.
"""

import struct
from collections.abc import Mapping
from typing import Protocol, TypeAlias

from gateway.backends.rpc.channel import Receiver
from gateway.backends.rpc.status import Outcome, Status, of_http, of_trailers

PREFIX = struct.Struct(">?L")  # is the message compressed, its length
PREFIX_BYTES = PREFIX.size
# Responses hold a handful of ids. This only keeps a broken server from filling the memory.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# How much of one answer may be on its way to us. It is topped up as it comes, so it bounds nothing but a burst.
WINDOW = 4 * 1024 * 1024


class Holder(Protocol):
    """Where a stream is: waiting in a client, or open on a connection."""

    def cancel(self, stream: "H2Stream") -> None: ...


# How the server's part of a call ended, if this frame ended it.
Ending: TypeAlias = tuple[Status, str] | None


class H2Stream:
    """A call, from its start to its end; `id` 0 while it waits for a connection.

    `send_window` and `credit`: bytes that may still go out and come in before a window is opened further. `receiver`:
    None once it has heard everything, or wants to hear no more.
    """

    __slots__ = (
        "_has_head",
        "_part",
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
        self.body = memoryview(PREFIX.pack(False, len(request)) + request)  # what has not gone out yet
        self.send_window = 0
        self.credit = WINDOW
        self.holder: Holder | None = None
        self.messages: list[bytes] = []
        self.outcome: Outcome | None = None
        self.receiver: Receiver | None = receiver
        self._part = bytearray()  # of a message that came in pieces
        self._has_head = False
        self.is_between_messages = False  # the next byte of data is the first of a message

    def __repr__(self) -> str:
        return f"<H2Stream {self.id} {self.path} unsent={len(self.body)} {self.outcome or 'open'}>"

    def cancel(self) -> None:
        """channel.Stream's."""
        self.receiver = None
        holder, self.holder = self.holder, None
        if holder is not None:
            holder.cancel(self)

    def end(self, status: Status, detail: str) -> None:
        """Over: for whoever holds it, who also sees to its `deliver`."""
        self.outcome = Outcome(status, detail, is_sent=not self.body)
        self.let_go()

    def let_go(self) -> None:
        """Keep nothing that takes memory."""
        self.holder = None
        self.body = memoryview(b"")
        self._part = bytearray()

    def deliver(self) -> None:
        """Hand on what has come since the last time."""
        if self.messages:
            messages, self.messages = self.messages, []
            if self.receiver is not None:
                self.receiver.messages(messages)
        # A receiver may cancel from inside messages(): so ask again.
        if self.outcome is not None and self.receiver is not None:
            receiver, self.receiver = self.receiver, None
            receiver.closed(self.outcome)

    # What came in its frames.

    def take(self, data: bytes) -> Ending:
        """The content of a DATA frame."""
        if not self._has_head:
            return Status.INTERNAL, "data before a head"
        self._part += data
        ending = self._split()
        self.is_between_messages = not self._part
        return ending

    def _split(self) -> Ending:
        part, at = self._part, 0
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

    def take_head(self, fields: Mapping[bytes, bytes], *, is_end: bool) -> Ending:
        """The content of a HEADERS frame: the answer's head, its trailers, or both in one when there is no message."""
        http_status = fields.get(b":status", b"200" if self._has_head else b"")
        if is_end:
            return self._end_by(fields, http_status)
        if self._has_head:
            return Status.INTERNAL, "a second head"
        if len(http_status) == 3 and http_status.startswith(b"1"):  # only announces the head
            return None
        self._has_head = self.is_between_messages = True
        return _check_head(fields, http_status)

    def _end_by(self, fields: Mapping[bytes, bytes], http_status: bytes) -> Ending:
        status, detail = of_trailers(fields, http_status)
        if status is Status.OK and self._part:
            return Status.INTERNAL, "ended in the middle of a message"
        return status, detail


def _check_head(fields: Mapping[bytes, bytes], http_status: bytes) -> Ending:
    if http_status != b"200":
        return of_http(http_status), f"HTTP status {http_status.decode('latin-1')}"
    content_type = fields.get(b"content-type", b"")
    if not content_type.startswith(b"application/grpc"):
        return Status.UNKNOWN, f"content-type {content_type.decode('latin-1')}"
    return None
