"""Reasoning before an answer, between `<think>` and `</think>`.

It exists only at the start of an answer: later, the same tags are content. Knows nothing of what follows the reasoning.
"""

from gateway.language.reply_parts import PartWriter
from gateway.language.text_reader import Reading, TextBuffer, read_literal, read_until, skip_space

REASONING_START, REASONING_END = "<think>", "</think>"
REASONING_MARKERS = (REASONING_START, REASONING_END)


def read_reasoning(buffer: TextBuffer, writer: PartWriter, *, is_open: bool) -> Reading[None]:
    """Reads any reasoning. `is_open`: the prompt holds the opening tag. If a model writes it again, it is dropped."""
    buffer.start_recording()
    yield from skip_space(buffer)
    is_tagged = yield from read_literal(buffer, REASONING_START)
    before = buffer.stop_recording()
    if not is_tagged and not is_open:
        writer.content(before)
        return
    if not is_tagged:
        writer.reasoning(before)
    yield from read_until(buffer, REASONING_END, writer.reasoning)
