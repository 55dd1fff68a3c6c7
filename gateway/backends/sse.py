"""Reads server-sent events from bytes, by the WHATWG's rules for the `data` field; every other field is skipped.

In: chunks of bytes, cut anywhere. Out: the data of each event that they completed. Knows no JSON and no sockets.
"""

from typing import Final

MAX_EVENT_BYTES = 8 * 1024 * 1024
END_OF_EVENT: Final = b"\n\n"


class EventTooLong(ValueError):
    """An event is longer than its limit: the server does not send what was asked for."""


class EventStream:
    """Feed it the body of a `text/event-stream` answer. `max_event_bytes`: the limit of one event's size."""

    __slots__ = ("_ended_in_cr", "_max_event_bytes", "_rest")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()  # the beginning of an incomplete event
        self._ended_in_cr = False

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte is the first of an event."""
        return not self._rest and not self._ended_in_cr

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that `data` completed, in order, without events that have no data field."""
        is_one_event = data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data.endswith(END_OF_EVENT)
        if is_one_event and not self._rest and not self._ended_in_cr and b"\r" not in data:
            if len(data) > self._max_event_bytes:
                raise EventTooLong
            return [data[6:-2]]
        rest = self._rest
        seen = max(len(rest) - 1, 0)  # its last byte may be the first of an end
        rest += self._with_line_feeds(data)
        blocks: list[bytes] = []
        if rest.find(END_OF_EVENT, seen) >= 0:
            blocks = bytes(rest).split(END_OF_EVENT)
            self._rest = bytearray(blocks.pop())
        if max(map(len, (self._rest, *blocks))) > self._max_event_bytes:
            raise EventTooLong
        return [event for block in blocks if b"data" in block and (event := _data(block)) is not None]

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Replaces CR and CRLF by LF. A CR at the end of a chunk counts at once, so an LF after it is dropped."""
        if self._ended_in_cr and data:
            data = data.removeprefix(b"\n")
            self._ended_in_cr = False
        if b"\r" not in data:
            return data
        self._ended_in_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:  # every event of vLLM has this one form
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:") or line == b"data"]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines) if lines else None
