"""Reads text that arrives in pieces: runs of characters, literals, everything up to a marker.

A reader is a generator that yields where it needs the next piece. It is written as if the whole text were there, and
where the text is cut does not change what is read. Readers pass on text as soon as they have read it, so no character
is read twice. Knows no format.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Reading: TypeAlias = Generator[None, None, _T]
Emit: TypeAlias = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class TextBuffer:
    """The text that has arrived; a reader has read it up to `position`. Little is unread where a reader waits."""

    __slots__ = ("_recorded", "_recording_from", "is_over", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_over = False
        self._recorded: list[str] | None = None
        self._recording_from = 0

    def add(self, piece: str) -> None:
        if self._recorded is not None:
            self._recorded.append(self.text[self._recording_from : self.position])
            self._recording_from = 0
        self.text = self.text[self.position :] + piece
        self.position = 0

    def read_to(self, end: int) -> str:
        read = self.text[self.position : end]
        self.position = end
        return read

    def start_recording(self, back: int = 0) -> None:
        """Record what is read from here on, and the last `back` characters of the current text."""
        self._recorded = []
        self._recording_from = self.position - back

    def stop_recording(self) -> str:
        """Returns what was read since `start_recording`; "" while nothing is recorded."""
        if self._recorded is None:
            return ""
        recorded = "".join(self._recorded) + self.text[self._recording_from : self.position]
        self._recorded = None
        return recorded


def ignore(_: str) -> None:
    """An Emit that drops the text."""


def match_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def wait_for_piece(buffer: TextBuffer) -> Reading[bool]:
    """Returns False if the text is over."""
    if not buffer.is_over:
        yield
    return not buffer.is_over


def peek(buffer: TextBuffer) -> Reading[str]:
    """Returns the next character and leaves it unread; "" at the end."""
    while buffer.position == len(buffer.text):
        if not (yield from wait_for_piece(buffer)):
            return ""
    return buffer.text[buffer.position]


def read_run(buffer: TextBuffer, pattern: re.Pattern[str], emit: Emit) -> Reading[None]:
    """Reads what `pattern` matches, which is a run of any length of a class of characters."""
    while True:
        emit(buffer.read_to(match_end(pattern, buffer.text, buffer.position)))
        if buffer.position < len(buffer.text) or not (yield from wait_for_piece(buffer)):
            return


def skip_space(buffer: TextBuffer) -> Reading[None]:
    yield from read_run(buffer, _SPACE, ignore)


def read_literal(buffer: TextBuffer, literal: str) -> Reading[bool]:
    """Reads `literal` if the text continues with it, else nothing. Returns whether it did."""
    while not buffer.text.startswith(literal, buffer.position):
        if not literal.startswith(buffer.text[buffer.position : buffer.position + len(literal)]):
            return False
        if not (yield from wait_for_piece(buffer)):
            return False
    buffer.position += len(literal)
    return True


def read_until(buffer: TextBuffer, marker: str, emit: Emit) -> Reading[bool]:
    """Emits the text before `marker` and drops the marker. Returns False, with all text emitted, if none arrives."""
    while True:
        found = buffer.text.find(marker, buffer.position)
        if found >= 0:
            emit(buffer.read_to(found))
            buffer.position += len(marker)
            return True
        emit(buffer.read_to(_find_marker_start(marker, buffer.text, buffer.position)))
        if not (yield from wait_for_piece(buffer)):
            emit(buffer.read_to(len(buffer.text)))
            return False


def read_rest(buffer: TextBuffer, emit: Emit) -> Reading[None]:
    while True:
        emit(buffer.read_to(len(buffer.text)))
        if not (yield from wait_for_piece(buffer)):
            return


def _find_marker_start(marker: str, text: str, start: int) -> int:
    """Returns where an incomplete marker at the end of `text` may begin; the length of `text` if there is none."""
    at = text.find(marker[0], max(start, len(text) - len(marker) + 1))
    while at >= 0 and not marker.startswith(text[at:]):
        at = text.find(marker[0], at + 1)
    return len(text) if at < 0 else at
