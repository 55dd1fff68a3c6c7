"""Server-sent events out of bytes, by the WHATWG's rules for the `data` field; every other field is skipped.

Chunks of bytes in, cut anywhere; the data of each event that they completed out. Knows no JSON and no sockets.
"""

MAX_EVENT_BYTES = 32 * 1024 * 1024  # vLLM echoes prompt ids in one event: about 7 bytes a token


class EventTooLong(ValueError):
    """An event went on beyond MAX_EVENT_BYTES: whatever is being sent, it is no event stream."""


class EventStream:
    """Feed it the body of a `text/event-stream` answer."""

    __slots__ = ("_ended_in_cr", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._ended_in_cr = False

    @property
    def is_between_events(self) -> bool:
        """The next byte is the first of an event."""
        return not self._rest and not self._ended_in_cr

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completed, in order; events without a data field are left out."""
        is_one_event = data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n")
        if is_one_event and not self._rest and not self._ended_in_cr and b"\r" not in data:
            return [data[6:-2]]
        blocks = (self._rest + self._with_line_feeds(data)).split(b"\n\n")
        self._rest = blocks.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong
        return [event for block in blocks if (event := _data(block)) is not None]

    def _with_line_feeds(self, data: bytes) -> bytes:
        """CR and CRLF end lines too. A CR that ends one chunk counts at once, so the LF that may follow must not."""
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
