"""Reads the JSON of a tool call as it arrives: an object with a name and arguments.

A value's text is passed on unchanged and unchecked; only its end is searched. Whether a model's arguments are valid is
for the client to check. Knows nothing of the markup around calls.
"""

import json
import re

from gateway.language.reply_parts import PartWriter
from gateway.language.text_reader import (
    Emit,
    Reading,
    TextBuffer,
    ignore,
    match_end,
    peek,
    read_run,
    skip_space,
    wait_for_piece,
)

_VALUE_STARTS = '"{[-0123456789tfn'
_SCALAR = re.compile(r"[\w.+-]*")
_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)  # stops at a backslash that is the last character
# JSON has no "<" outside strings, so a "<" begins the tag that closes the call, and the value is incomplete.
_BETWEEN_STRINGS = re.compile(r'[^"{}\[\]<]*')
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}


class NotACall(Exception):
    """What looked like a call is none: the text read so far is content."""


def expect(buffer: TextBuffer, characters: str) -> Reading[str]:
    """Returns the next character after whitespace and leaves it unread.

    Raises `NotACall` unless it is one of `characters`.
    """
    yield from skip_space(buffer)
    found = yield from peek(buffer)
    if not found or found not in characters:
        raise NotACall
    return found


def read_call(buffer: TextBuffer, writer: PartWriter, *, needs_arguments: bool) -> Reading[None]:
    """Reads an object from its opening brace on. Raises `NotACall` unless the call has begun.

    If a call that has begun turns invalid, this returns there and leaves the rest of the text unread.
    """
    call = _Call(buffer, writer)
    buffer.position += 1
    try:
        while (yield from _read_member(buffer, call)):
            pass
        call.finish(needs_arguments=needs_arguments)
    except NotACall:
        if not call.has_begun:
            raise


def read_value(buffer: TextBuffer, emit: Emit) -> Reading[None]:
    """Reads a JSON value. Raises `NotACall` where none begins."""
    match (yield from expect(buffer, _VALUE_STARTS)):
        case '"':
            yield from _read_string(buffer, emit)
        case "{" | "[":
            yield from _read_nested(buffer, emit)
        case _:
            yield from read_run(buffer, _SCALAR, emit)


class _Call:
    """A call whose object is being read. The call begins when both its name and its arguments have arrived.

    If a key occurs twice, its first value counts.
    """

    __slots__ = ("_buffer", "_early", "_name", "_writer", "has_begun")

    def __init__(self, buffer: TextBuffer, writer: PartWriter) -> None:
        self.has_begun = False
        self._buffer = buffer
        self._writer = writer
        self._name: str | None = None
        self._early: list[str] | None = None  # arguments that arrived before the name

    def set_name(self, name: str) -> None:
        if self._name is not None:
            return
        if not name or not name.isprintable():  # half a surrogate pair is not printable, and could not be sent
            raise NotACall
        self._name = name
        if self._early is not None:
            self._begin(name)
            self._writer.arguments("".join(self._early))

    def open_arguments(self) -> Emit:
        if self.has_begun or self._early is not None:
            return ignore
        if self._name is None:
            self._early = []
            return self._early.append
        self._begin(self._name)
        return self._writer.arguments

    def finish(self, *, needs_arguments: bool) -> None:
        if self.has_begun:
            return
        if self._name is None or needs_arguments:
            raise NotACall
        self._begin(self._name)
        self._writer.arguments("{}")

    def _begin(self, name: str) -> None:
        self.has_begun = True
        self._buffer.stop_recording()
        self._writer.start_call(name)


def _read_member(buffer: TextBuffer, call: _Call) -> Reading[bool]:
    """Reads a key with its value, if there is one, and the comma or brace after it. Returns whether it was a comma."""
    following = yield from expect(buffer, '"}')
    if following == '"':
        yield from _read_pair(buffer, call)
        following = yield from expect(buffer, ",}")
    buffer.position += 1
    return following == ","


def _read_pair(buffer: TextBuffer, call: _Call) -> Reading[None]:
    key = yield from _read_text(buffer)
    yield from expect(buffer, ":")
    buffer.position += 1
    if key == "name":
        yield from expect(buffer, '"')
        call.set_name((yield from _read_text(buffer)))
    elif key in {"arguments", "parameters"}:
        yield from expect(buffer, _VALUE_STARTS)
        yield from read_value(buffer, call.open_arguments())
    else:
        yield from read_value(buffer, ignore)


def _read_text(buffer: TextBuffer) -> Reading[str]:
    """Reads a JSON string and returns its decoded text."""
    spelt: list[str] = []
    yield from _read_string(buffer, spelt.append)
    try:
        return str(json.loads("".join(spelt), strict=False))
    except ValueError as exc:  # a wrong escape, or the end of the text
        raise NotACall from exc


def _read_string(buffer: TextBuffer, emit: Emit) -> Reading[None]:
    inside = buffer.position + 1
    while True:
        end = match_end(_IN_STRING, buffer.text, inside)
        is_closed = buffer.text.startswith('"', end)
        emit(buffer.read_to(end + is_closed))
        if is_closed:
            return
        if not (yield from wait_for_piece(buffer)):
            emit(buffer.read_to(len(buffer.text)))
            return
        inside = buffer.position


def _read_nested(buffer: TextBuffer, emit: Emit) -> Reading[None]:
    nesting = _Nesting()
    while True:
        emit(buffer.read_to(nesting.advance(buffer.text, buffer.position)))
        if not nesting.depth:
            return
        if not (yield from wait_for_piece(buffer)):
            emit(buffer.read_to(len(buffer.text)))
            return


class _Nesting:
    """Searches for the end of an object or an array; `depth` is 0 when it is found."""

    __slots__ = ("_is_in_string", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self._is_in_string = False

    def advance(self, text: str, at: int) -> int:
        """Returns where in `text` the value ends; while its end has not arrived, up to where `text` can be read."""
        while True:
            at = match_end(_IN_STRING if self._is_in_string else _BETWEEN_STRINGS, text, at)
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
