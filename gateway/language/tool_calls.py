"""Readers of whole answers, one for each format of tool calls. In: an answer's text. Out: parts.

Text that looks like a call and proves to be none is content, unchanged: the first character that no call can contain
decides, and the reader continues from there. A last call that is not closed counts as a call.
"""

import re

from gateway.language.reply_parts import PartWriter
from gateway.language.text_reader import (
    Reading,
    TextBuffer,
    ignore,
    peek,
    read_literal,
    read_rest,
    read_run,
    read_until,
    skip_space,
)  # fmt: skip
from gateway.language.tool_formats import (
    HERMES_END,
    HERMES_START,
    LLAMA_TAG,
    MISTRAL_ARGUMENTS,
    MISTRAL_CALLS,
    MISTRAL_ID,
)  # fmt: skip
from gateway.language.tool_json import NotACall, expect, read_call, read_value

_NAME = re.compile(r'[^\s\[\]{}"<>]*')


def read_content(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    yield from read_rest(buffer, writer.content)


def read_hermes(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times, between other text."""
    while (yield from read_until(buffer, HERMES_START, writer.content)):
        buffer.start_recording(back=len(HERMES_START))
        yield from _or_content(buffer, writer, _read_hermes_call(buffer, writer))


def read_llama3_json(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Reads `{"name": ..., "parameters": {...}}`, perhaps after a tag, several with `;` between them.

    Many answers are JSON and no call, so a call counts only at the very start of the answer. All other text is content.
    """
    buffer.start_recording()
    yield from _or_content(buffer, writer, _read_llama_calls(buffer, writer))
    yield from read_content(buffer, writer)


def read_mistral(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Reads `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call."""
    while (yield from read_until(buffer, MISTRAL_CALLS, writer.content)):
        buffer.start_recording(back=len(MISTRAL_CALLS))
        yield from _or_content(buffer, writer, _read_mistral_calls(buffer, writer))


def read_required(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Reads `[{"name": ..., "parameters": {...}}, ...]`, the form that the guide of `tool_guide` enforces."""
    yield from _read_forced(buffer, writer, _read_list(buffer, writer))


def read_call_alone(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Reads `{"name": ..., "arguments": {...}}`, the form of one call that the guide of `tool_guide` enforces."""
    yield from _read_forced(buffer, writer, _read_object(buffer, writer))


def read_named(buffer: TextBuffer, writer: PartWriter, name: str) -> Reading[None]:
    """Reads the arguments of the function `name`, the form that the guide of `tool_guide` enforces."""
    yield from _read_forced(buffer, writer, _read_arguments(buffer, writer, name))


def _read_forced(buffer: TextBuffer, writer: PartWriter, reading: Reading[None]) -> Reading[None]:
    """Runs `reading`. A call that was cut off before it began is no content; text that cannot be a call is."""
    buffer.start_recording()
    try:
        yield from reading
    except NotACall:
        rest = buffer.stop_recording()
        if not buffer.is_over:
            writer.content(rest)
    yield from read_content(buffer, writer)


def _or_content(buffer: TextBuffer, writer: PartWriter, reading: Reading[None]) -> Reading[None]:
    """Runs `reading`. If it finds that the text is no call, the text recorded so far is content."""
    try:
        yield from reading
    except NotACall:
        writer.content(buffer.stop_recording())


def _read_hermes_call(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    yield from expect(buffer, "{")
    yield from read_call(buffer, writer, needs_arguments=False)
    yield from skip_space(buffer)
    yield from read_literal(buffer, HERMES_END)


def _read_llama_calls(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Raises `NotACall` after the last call, where no other call follows."""
    yield from skip_space(buffer)
    is_tagged = yield from read_literal(buffer, LLAMA_TAG)
    while True:
        yield from expect(buffer, "{")
        yield from read_call(buffer, writer, needs_arguments=not is_tagged)
        buffer.start_recording()
        yield from skip_space(buffer)
        yield from read_literal(buffer, ";")


def _read_mistral_calls(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    yield from skip_space(buffer)
    match (yield from peek(buffer)):
        case "[":
            yield from _read_list(buffer, writer)
        case "{":
            yield from read_call(buffer, writer, needs_arguments=False)
        case _:
            yield from _read_mistral_call(buffer, writer)


def _read_mistral_call(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    """Reads one call after the marker: `name[ARGS]{...}`, in some versions `name[CALL_ID]id[ARGS]{...}`."""
    name: list[str] = []
    yield from read_run(buffer, _NAME, name.append)
    if (yield from read_literal(buffer, MISTRAL_ID)):
        yield from read_run(buffer, _NAME, ignore)
    yield from read_literal(buffer, MISTRAL_ARGUMENTS)
    yield from _read_arguments(buffer, writer, "".join(name))


def _read_arguments(buffer: TextBuffer, writer: PartWriter, name: str) -> Reading[None]:
    yield from expect(buffer, "{")
    if not name.isprintable() or not name:
        raise NotACall
    buffer.stop_recording()
    writer.start_call(name)
    yield from read_value(buffer, writer.arguments)


def _read_object(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    yield from expect(buffer, "{")
    yield from read_call(buffer, writer, needs_arguments=False)


def _read_list(buffer: TextBuffer, writer: PartWriter) -> Reading[None]:
    following = yield from expect(buffer, "[")
    while following != "]":
        buffer.position += 1
        yield from expect(buffer, "{")
        yield from read_call(buffer, writer, needs_arguments=False)
        buffer.start_recording()
        following = yield from expect(buffer, ",]")
    buffer.position += 1
    buffer.stop_recording()
