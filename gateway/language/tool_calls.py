"""Readers of whole answers, one for each way of writing tool calls: text in, parts out.

What looks like a call and turns out not to be one is content, to the character. The first text that no call can contain
decides; from there on reading goes on as before. A last call that is not closed counts.
"""

import re

from gateway.language.parts import PartWriter
from gateway.language.tool_formats import (
    HERMES_END,
    HERMES_START,
    LLAMA_TAG,
    MISTRAL_ARGUMENTS,
    MISTRAL_CALLS,
    MISTRAL_ID,
)  # fmt: skip
from gateway.language.tool_json import NotACall, expect, read_call, read_value
from gateway.language.tool_text import (
    Pieces,
    Reading,
    ignore,
    peek,
    read_literal,
    read_rest,
    read_run,
    read_until,
    skip_space,
)  # fmt: skip

_NAME = re.compile(r'[^\s\[\]{}"<>]*')


def read_content(text: Pieces, writer: PartWriter) -> Reading[None]:
    yield from read_rest(text, writer.content)


def read_hermes(text: Pieces, writer: PartWriter) -> Reading[None]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times, between other text."""
    while (yield from read_until(text, HERMES_START, writer.content)):
        text.hold(back=len(HERMES_START))
        yield from _or_content(text, writer, _read_hermes_call(text, writer))


def read_llama3_json(text: Pieces, writer: PartWriter) -> Reading[None]:
    """`{"name": ..., "parameters": {...}}`, perhaps after a tag, several with `;` between them; else all is content.

    An answer is often JSON and no call, so nothing but its very start is taken for one.
    """
    text.hold()
    yield from _or_content(text, writer, _read_llama_calls(text, writer))
    yield from read_content(text, writer)


def read_mistral(text: Pieces, writer: PartWriter) -> Reading[None]:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call."""
    while (yield from read_until(text, MISTRAL_CALLS, writer.content)):
        text.hold(back=len(MISTRAL_CALLS))
        yield from _or_content(text, writer, _read_mistral_calls(text, writer))


def read_required(text: Pieces, writer: PartWriter) -> Reading[None]:
    """`[{"name": ..., "parameters": {...}}, ...]`, which `tool_guide` has made sure of."""
    text.hold()
    yield from _or_content(text, writer, _read_list(text, writer))
    yield from read_content(text, writer)


def read_named(text: Pieces, writer: PartWriter, name: str) -> Reading[None]:
    """The arguments of one known function, which `tool_guide` has made sure of."""
    text.hold()
    yield from _or_content(text, writer, _read_arguments(text, writer, name))
    yield from read_content(text, writer)


def _or_content(text: Pieces, writer: PartWriter, reading: Reading[None]) -> Reading[None]:
    """Read what may be a call; if it is none, what was read of it since the last `hold` is content."""
    try:
        yield from reading
    except NotACall:
        writer.content(text.release())


def _read_hermes_call(text: Pieces, writer: PartWriter) -> Reading[None]:
    yield from expect(text, "{")
    yield from read_call(text, writer, needs_arguments=False)
    yield from skip_space(text)
    yield from read_literal(text, HERMES_END)


def _read_llama_calls(text: Pieces, writer: PartWriter) -> Reading[None]:
    """Ends where no other call follows, with `NotACall`."""
    yield from skip_space(text)
    is_tagged = yield from read_literal(text, LLAMA_TAG)
    while True:
        yield from expect(text, "{")
        yield from read_call(text, writer, needs_arguments=not is_tagged)
        text.hold()
        yield from skip_space(text)
        yield from read_literal(text, ";")


def _read_mistral_calls(text: Pieces, writer: PartWriter) -> Reading[None]:
    yield from skip_space(text)
    match (yield from peek(text)):
        case "[":
            yield from _read_list(text, writer)
        case "{":
            yield from read_call(text, writer, needs_arguments=False)
        case _:
            yield from _read_mistral_call(text, writer)


def _read_mistral_call(text: Pieces, writer: PartWriter) -> Reading[None]:
    """One call after the marker: `name[ARGS]{...}`, in some versions `name[CALL_ID]id[ARGS]{...}`."""
    name: list[str] = []
    yield from read_run(text, _NAME, name.append)
    if (yield from read_literal(text, MISTRAL_ID)):
        yield from read_run(text, _NAME, ignore)
    yield from read_literal(text, MISTRAL_ARGUMENTS)
    yield from _read_arguments(text, writer, "".join(name))


def _read_arguments(text: Pieces, writer: PartWriter, name: str) -> Reading[None]:
    yield from expect(text, "{")
    if not name.isprintable() or not name:
        raise NotACall
    text.release()
    writer.start_call(name)
    yield from read_value(text, writer.arguments)


def _read_list(text: Pieces, writer: PartWriter) -> Reading[None]:
    following = yield from expect(text, "[")
    while following != "]":
        text.position += 1
        yield from expect(text, "{")
        yield from read_call(text, writer, needs_arguments=False)
        text.hold()
        following = yield from expect(text, ",]")
    text.position += 1
    text.release()
