"""Text that comes in pieces, and what is read of it: runs of characters, literals, all up to a marker.

A reader is a generator that yields where it needs the next piece: it is written as if all text were there, and how that
is cut changes nothing. What is read goes to a function as it comes, so nothing is looked at twice. Knows no format.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Reading: TypeAlias = Generator[None, None, _T]
Give: TypeAlias = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Pieces:
    """`text` from `position` on is what came and was not read yet; short, wherever a reader waits for more."""

    __slots__ = ("_held", "_held_from", "is_over", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_over = False
        self._held: list[str] | None = None
        self._held_from = 0

    def add(self, piece: str) -> None:
        if self._held is not None:
            self._held.append(self.text[self._held_from : self.position])
            self._held_from = 0
        self.text = self.text[self.position :] + piece
        self.position = 0

    def take(self, end: int) -> str:
        taken = self.text[self.position : end]
        self.position = end
        return taken

    def hold(self, back: int = 0) -> None:
        """Keep what is read from here on, and the last `back` characters of the current text."""
        self._held = []
        self._held_from = self.position - back

    def release(self) -> str:
        """What was read since `hold`; "" when nothing is held."""
        if self._held is None:
            return ""
        held = "".join(self._held) + self.text[self._held_from : self.position]
        self._held = None
        return held


def ignore(_: str) -> None:
    """For text that nobody wants."""


def end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def wait(text: Pieces) -> Reading[bool]:
    """For the next piece: whether there is one."""
    if not text.is_over:
        yield
    return not text.is_over


def peek(text: Pieces) -> Reading[str]:
    """The next character, which stays; "" at the end."""
    while text.position == len(text.text):
        if not (yield from wait(text)):
            return ""
    return text.text[text.position]


def read_run(text: Pieces, pattern: re.Pattern[str], give: Give) -> Reading[None]:
    """What `pattern`, a run of any length of a class of characters, matches."""
    while True:
        give(text.take(end_of(pattern, text.text, text.position)))
        if text.position < len(text.text) or not (yield from wait(text)):
            return


def skip_space(text: Pieces) -> Reading[None]:
    yield from read_run(text, _SPACE, ignore)


def read_literal(text: Pieces, literal: str) -> Reading[bool]:
    """Whether the text goes on with `literal`; then it is read, else nothing is."""
    while not text.text.startswith(literal, text.position):
        if not literal.startswith(text.text[text.position : text.position + len(literal)]):
            return False
        if not (yield from wait(text)):
            return False
    text.position += len(literal)
    return True


def read_until(text: Pieces, marker: str, give: Give) -> Reading[bool]:
    """All before `marker`, and the marker, which is not given; all there is when it does not come: then False."""
    while True:
        found = text.text.find(marker, text.position)
        if found >= 0:
            give(text.take(found))
            text.position += len(marker)
            return True
        give(text.take(_start_of(marker, text.text, text.position)))
        if not (yield from wait(text)):
            give(text.take(len(text.text)))
            return False


def read_rest(text: Pieces, give: Give) -> Reading[None]:
    while True:
        give(text.take(len(text.text)))
        if not (yield from wait(text)):
            return


def _start_of(marker: str, text: str, start: int) -> int:
    """Where, at the end of `text`, the marker may have begun; the end where it has not."""
    at = text.find(marker[0], max(start, len(text) - len(marker) + 1))
    while at >= 0 and not marker.startswith(text[at:]):
        at = text.find(marker[0], at + 1)
    return len(text) if at < 0 else at
