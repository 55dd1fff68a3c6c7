"""Reasoning before an answer, between `<think>` and `</think>`.

Only at the start: the same tags later on are content. Knows nothing of what follows the reasoning.
"""

from gateway.language.parts import PartWriter
from gateway.language.tool_text import Pieces, Reading, read_literal, read_until, skip_space

REASONING_START, REASONING_END = "<think>", "</think>"
REASONING_MARKERS = (REASONING_START, REASONING_END)


def opens_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends in the opening tag, so that the answer to it starts inside the reasoning."""
    return prompt.rstrip().endswith(REASONING_START)


def read_reasoning(text: Pieces, writer: PartWriter, *, is_open: bool) -> Reading[None]:
    """`is_open`: the prompt holds the opening tag. Some models write it all the same, and it is dropped."""
    text.hold()
    yield from skip_space(text)
    is_tagged = yield from read_literal(text, REASONING_START)
    before = text.release()
    if not is_tagged and not is_open:
        writer.content(before)
        return
    if not is_tagged:
        writer.reasoning(before)
    yield from read_until(text, REASONING_END, writer.reasoning)
