"""make_parser: the parser of one answer, by its model's format and what its request asked for.

An answer's text comes in, in pieces of any size; parts go out. Nothing is shared between two answers.
"""

from functools import partial

from gateway.language.reasoning import read_reasoning
from gateway.language.reply_parts import Part, PartWriter, ReplyParser
from gateway.language.text_reader import Reading, TextBuffer
from gateway.language.tool_calls import (
    read_call_alone,
    read_content,
    read_hermes,
    read_llama3_json,
    read_mistral,
    read_named,
    read_required,
)  # fmt: skip
from gateway.language.tool_formats import ToolFormat, new_call_id
from gateway.language.tool_guide import Forced

_READERS = {
    None: read_content,
    ToolFormat.HERMES: read_hermes,
    ToolFormat.LLAMA3_JSON: read_llama3_json,
    ToolFormat.MISTRAL: read_mistral,
}


def make_parser(
    tool_format: ToolFormat | None,
    *,
    forced: Forced | None = None,
    reasoning: bool = False,
    starts_in_reasoning: bool = False,
) -> ReplyParser:
    """Returns one answer's parser. `tool_format`: None without tools; then all text after the reasoning is content.

    `forced`: a guide forces the answer to be a call, in the form of `tool_guide`, after an opening that the prompt ends
    with. Engines guide from the first token on, so such an answer has no reasoning.
    """
    buffer = TextBuffer()
    writer = PartWriter(partial(new_call_id, tool_format))
    rest = (
        _READERS[tool_format](buffer, writer) if forced is None else _read_forced(buffer, writer, tool_format, forced)
    )
    if reasoning:
        rest = _join(read_reasoning(buffer, writer, is_open=starts_in_reasoning and forced is None), rest)
    return _Parser(buffer, writer, rest)


class _Parser:
    __slots__ = ("_buffer", "_reading", "_writer")

    def __init__(self, buffer: TextBuffer, writer: PartWriter, reading: Reading[None]) -> None:
        self._buffer = buffer
        self._writer = writer
        self._reading = reading

    def feed(self, text: str) -> list[Part]:
        self._buffer.add(text)
        next(self._reading, None)
        return self._writer.drain()

    def flush(self) -> list[Part]:
        self._buffer.is_over = True
        next(self._reading, None)
        self._writer.finish()
        return self._writer.drain()

    @property
    def has_called(self) -> bool:
        return self._writer.calls > 0


def _read_forced(
    buffer: TextBuffer, writer: PartWriter, tool_format: ToolFormat | None, forced: Forced
) -> Reading[None]:
    if tool_format in {ToolFormat.HERMES, ToolFormat.LLAMA3_JSON}:
        return read_call_alone(buffer, writer)
    if tool_format is None and forced.name is not None:
        return read_named(buffer, writer, forced.name)
    return read_required(buffer, writer)


def _join(first: Reading[None], second: Reading[None]) -> Reading[None]:
    yield from first
    yield from second
