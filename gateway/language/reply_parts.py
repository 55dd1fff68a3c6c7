"""The parts of an answer's text, which are content, reasoning and tool calls, and the protocol of their parsers.

Readers of a model's format write the parts; gateway/openai frames them. Knows no format, no wire and no engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a tool call: `index` counts an answer's calls from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON of a call's arguments, as the model wrote it and unchecked."""

    index: int
    text: str


Part: TypeAlias = Content | Reasoning | CallStart | CallArguments


class ReplyParser(Protocol):
    """Feed it an answer's text in pieces of any size, then `flush`. The cuts only change where parts are cut."""

    def feed(self, text: str) -> list[Part]:
        """Returns the parts that are certain now."""
        ...

    def flush(self) -> list[Part]:
        """Returns the remaining parts when the text is over."""
        ...

    @property
    def has_called(self) -> bool:
        """Whether a call has begun, so that the answer ends with `tool_calls` instead of `stop`."""
        ...


class PartWriter:
    """Collects the parts of one answer.

    Whitespace alone before, between or after calls belongs to their format and is dropped, as OpenAI returns no content
    there either. So whitespace at the start of content is kept back until the next text or call.
    """

    __slots__ = ("_has_text", "_new_id", "_parts", "_space", "calls")

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.calls = 0
        self._new_id = new_id
        self._parts: list[Part] = []
        self._space: list[str] = []
        self._has_text = False

    def content(self, text: str) -> None:
        if not text:
            return
        if not self._has_text:
            if text.isspace():
                self._space.append(text)
                return
            text = "".join(self._space) + text
            self._space.clear()
            self._has_text = True
        self._parts.append(Content(text))

    def reasoning(self, text: str) -> None:
        if text:
            self._parts.append(Reasoning(text))

    def start_call(self, name: str) -> None:
        self._space.clear()
        self._has_text = False
        self._parts.append(CallStart(self.calls, self._new_id(), name))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """Adds to the arguments of the call that was started last."""
        if text:
            self._parts.append(CallArguments(self.calls - 1, text))

    def finish(self) -> None:
        if self._space and not self.calls:
            self._parts.append(Content("".join(self._space)))
        self._space.clear()

    def drain(self) -> list[Part]:
        """Returns the parts written since the last call."""
        parts, self._parts = self._parts, []
        return parts
