"""A call's JSON: an object with a name and arguments, read as it comes.

The text of a value goes on unchanged and unchecked, only its end is looked for: what a model makes of a function's
arguments is the client's to judge. Knows nothing of the markup around calls.
"""

import json
import re

from gateway.language.parts import PartWriter
from gateway.language.tool_text import Give, Pieces, Reading, end_of, ignore, peek, read_run, skip_space, wait

_VALUE_STARTS = '"{[-0123456789tfn'
_SCALAR = re.compile(r"[\w.+-]*")
_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)  # stops at a backslash whose second half has not come
# JSON has no "<" outside strings: the tag that closes a call has come before the value's end.
_BETWEEN_STRINGS = re.compile(r'[^"{}\[\]<]*')
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}


class NotACall(Exception):
    """What looked like a call is none; the text up to here can be nothing but content."""


def expect(text: Pieces, characters: str) -> Reading[str]:
    """The next character after whitespace, which stays. Raises `NotACall` unless it is one of `characters`."""
    yield from skip_space(text)
    found = yield from peek(text)
    if not found or found not in characters:
        raise NotACall
    return found


def read_call(text: Pieces, writer: PartWriter, *, needs_arguments: bool) -> Reading[None]:
    """An object, from its opening brace on. Raises `NotACall`, but not once the call has begun.

    From where a call that has begun makes no sense, the text is left to whoever reads what follows.
    """
    call = _Call(text, writer)
    text.position += 1
    try:
        while (yield from _read_member(text, call)):
            pass
        call.close(needs_arguments=needs_arguments)
    except NotACall:
        if not call.has_begun:
            raise


def read_value(text: Pieces, give: Give) -> Reading[None]:
    """A JSON value. Raises `NotACall` where none begins."""
    match (yield from expect(text, _VALUE_STARTS)):
        case '"':
            yield from _read_string(text, give)
        case "{" | "[":
            yield from _read_nested(text, give)
        case _:
            yield from read_run(text, _SCALAR, give)


class _Call:
    """What is known of a call while its object is read; it begins when both its name and its arguments are there.

    Of a key that comes twice, the first one counts.
    """

    __slots__ = ("_early", "_name", "_text", "_writer", "has_begun")

    def __init__(self, text: Pieces, writer: PartWriter) -> None:
        self.has_begun = False
        self._text = text
        self._writer = writer
        self._name: str | None = None
        self._early: list[str] | None = None  # arguments that came before the name

    def take_name(self, name: str) -> None:
        if self._name is not None:
            return
        if not name or not name.isprintable():  # half a surrogate pair is not, and could not be sent
            raise NotACall
        self._name = name
        if self._early is not None:
            self._begin(name)
            self._writer.arguments("".join(self._early))

    def open_arguments(self) -> Give:
        if self.has_begun or self._early is not None:
            return ignore
        if self._name is None:
            self._early = []
            return self._early.append
        self._begin(self._name)
        return self._writer.arguments

    def close(self, *, needs_arguments: bool) -> None:
        if self.has_begun:
            return
        if self._name is None or needs_arguments:
            raise NotACall
        self._begin(self._name)
        self._writer.arguments("{}")

    def _begin(self, name: str) -> None:
        self.has_begun = True
        self._text.release()
        self._writer.start_call(name)


def _read_member(text: Pieces, call: _Call) -> Reading[bool]:
    """A key and its value, if there is one, and what ends them: whether another may follow."""
    following = yield from expect(text, '"}')
    if following == '"':
        yield from _read_pair(text, call)
        following = yield from expect(text, ",}")
    text.position += 1
    return following == ","


def _read_pair(text: Pieces, call: _Call) -> Reading[None]:
    key = yield from _read_text(text)
    yield from expect(text, ":")
    text.position += 1
    if key == "name":
        yield from expect(text, '"')
        call.take_name((yield from _read_text(text)))
    elif key in {"arguments", "parameters"}:
        yield from expect(text, _VALUE_STARTS)
        yield from read_value(text, call.open_arguments())
    else:
        yield from read_value(text, ignore)


def _read_text(text: Pieces) -> Reading[str]:
    """What a JSON string says."""
    spelt: list[str] = []
    yield from _read_string(text, spelt.append)
    try:
        return str(json.loads("".join(spelt), strict=False))
    except ValueError as exc:  # a wrong escape, or the end of the text
        raise NotACall from exc


def _read_string(text: Pieces, give: Give) -> Reading[None]:
    inside = text.position + 1
    while True:
        end = end_of(_IN_STRING, text.text, inside)
        is_closed = text.text.startswith('"', end)
        give(text.take(end + is_closed))
        if is_closed:
            return
        if not (yield from wait(text)):
            give(text.take(len(text.text)))
            return
        inside = text.position


def _read_nested(text: Pieces, give: Give) -> Reading[None]:
    nesting = _Nesting()
    while True:
        give(text.take(nesting.advance(text.text, text.position)))
        if not nesting.depth:
            return
        if not (yield from wait(text)):
            give(text.take(len(text.text)))
            return


class _Nesting:
    """The search for the end of an object or an array; `depth` is 0 once it is found."""

    __slots__ = ("_is_in_string", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self._is_in_string = False

    def advance(self, text: str, at: int) -> int:
        """How far the value goes in `text`, from `at` on: all that can be read of it."""
        while True:
            at = end_of(_IN_STRING if self._is_in_string else _BETWEEN_STRINGS, text, at)
            character = text[at : at + 1]
            if character == '"':
                self._is_in_string = not self._is_in_string
            elif character == "<":
                self.depth = 0
                return at
            elif character not in _DEPTHS:
                return at
            else:
                self.depth += _DEPTHS[character]
                if not self.depth:
                    return at + 1
            at += 1
