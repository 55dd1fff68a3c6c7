"""The messages of a conversation as content blocks, and what a chat template reads of them.

Knows Anthropic's objects, and how vLLM 0.32 shows them to a model (entrypoints/anthropic/serving.py); not templates.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from gateway.wire.fields import (
    ITEMS,
    MAX_ITEMS,
    TEXT,
    JsonObject,
    Labels,
    NonEmpty,
    Only,
    WireModel,
    by_field,
    by_type,
    refuse_type,
    tag,
)

PICTURE = "image"  # what the token lane has no tokens for
# Claude Code's first system block: it names the request, so that no two prompts would begin alike.
BILLING = "x-anthropic-billing-header"


class Block(WireModel):
    """The base of blocks. By itself, it is one of an unknown type, validated only for the error that it gives."""

    type: Annotated[str, BeforeValidator(refuse_type)]
    cache_control: Labels | None = None  # no effect by nature


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: Annotated[object, Only([])] = None  # official clients send an answer back with all of its fields


class ThinkingBlock(Block):
    """`signature`: without effect; the thinking itself goes into the prompt."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Thinking that another server has encrypted: there is nothing to show to a model."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: NonEmpty
    name: NonEmpty
    input: JsonObject
    caller: JsonObject | None = None  # without effect: only the model makes calls here

    def plain(self) -> Mapping[str, object]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.input}}


_TEXT, _THINKING, _REDACTED, _USE, _RESULT, _OTHER = map(
    tag, ("text block", "thinking", "redacted", "tool use", "tool result", "other block")
)
_BY_TYPE = by_type("must be a string or a list of content blocks")
_SOME = Field(max_length=MAX_ITEMS, fail_fast=True)
ShownBlock: TypeAlias = Annotated[
    Annotated[TextBlock, _TEXT] | Annotated[Block, _OTHER], by_field("type", {"text": _TEXT}, _OTHER)
]
TextContent: TypeAlias = Annotated[Annotated[str, TEXT] | Annotated[list[ShownBlock], _SOME, ITEMS], _BY_TYPE]


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: NonEmpty
    content: TextContent | None = None
    is_error: bool = False  # without effect: no template has a place for it, and the content describes the error

    def plain(self) -> Mapping[str, object]:
        parts = (self.content,) if isinstance(self.content, str) else texts(self.content or ())
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": "\n".join(parts)}


UserBlock: TypeAlias = Annotated[
    Annotated[TextBlock, _TEXT] | Annotated[ToolResultBlock, _RESULT] | Annotated[Block, _OTHER],
    by_field("type", {"text": _TEXT, "tool_result": _RESULT}, _OTHER),
]
AssistantBlock: TypeAlias = Annotated[
    Annotated[TextBlock, _TEXT]
    | Annotated[ThinkingBlock, _THINKING]
    | Annotated[RedactedThinkingBlock, _REDACTED]
    | Annotated[ToolUseBlock, _USE]
    | Annotated[Block, _OTHER],
    by_field("type", {"text": _TEXT, "thinking": _THINKING, "redacted_thinking": _REDACTED, "tool_use": _USE}, _OTHER),
]


def texts(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, TextBlock):
            yield block.text


def system_text(content: str | Sequence[Block] | None) -> str:
    """Returns a system prompt as one text, joined as vLLM joins it."""
    found = (content,) if isinstance(content, str) else texts(content or ())
    return "".join(text for text in found if not text.startswith(BILLING))


class Message(WireModel):
    """The base of messages. By itself, it is one of an unknown role, validated only for the error that it gives."""

    role: Literal["user", "assistant", "system"]

    @abstractmethod
    def plain(self) -> Iterator[Mapping[str, object]]:
        """Yields what a chat template reads."""


class UserMessage(Message):
    role: Literal["user"]
    content: Annotated[Annotated[str, TEXT] | Annotated[list[UserBlock], _SOME, ITEMS], _BY_TYPE]

    def plain(self) -> Iterator[Mapping[str, object]]:
        """Yields the results of calls first, each as a message of its own, then what the user says, if anything."""
        if isinstance(self.content, str):
            yield {"role": "user", "content": self.content}
            return
        yield from (block.plain() for block in self.content if isinstance(block, ToolResultBlock))
        said = _join(self.content)
        if said is not None:
            yield {"role": "user", "content": said}


class AssistantMessage(Message):
    role: Literal["assistant"]
    content: Annotated[Annotated[str, TEXT] | Annotated[list[AssistantBlock], _SOME, ITEMS], _BY_TYPE]

    @property
    def is_open(self) -> bool:
        """Whether it ends with text, which an answer after it continues."""
        return isinstance(self.content, str) or (bool(self.content) and isinstance(self.content[-1], TextBlock))

    def plain(self) -> Iterator[Mapping[str, object]]:
        if isinstance(self.content, str):
            yield {"role": "assistant", "content": self.content}
            return
        message: dict[str, object] = {"role": "assistant", "content": _join(self.content)}
        thinking = "".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock))
        if thinking:
            message |= {"reasoning": thinking, "reasoning_content": thinking}
        calls = [block.plain() for block in self.content if isinstance(block, ToolUseBlock)]
        if calls:
            message["tool_calls"] = calls
        yield message


class SystemMessage(Message):
    """A system's message in the middle of a conversation."""

    role: Literal["system"]
    content: TextContent

    def plain(self) -> Iterator[Mapping[str, object]]:
        text = system_text(self.content)
        if text:
            yield {"role": "system", "content": text}


_USER, _ASSISTANT, _SYSTEM, _UNKNOWN = map(tag, ("user", "assistant", "system", "unknown"))
AnyMessage: TypeAlias = Annotated[
    Annotated[UserMessage, _USER]
    | Annotated[AssistantMessage, _ASSISTANT]
    | Annotated[SystemMessage, _SYSTEM]
    | Annotated[Message, _UNKNOWN],
    by_field("role", {"user": _USER, "assistant": _ASSISTANT, "system": _SYSTEM}, _UNKNOWN),
]
Messages: TypeAlias = Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]


def _join(blocks: Sequence[Block]) -> object:
    """Returns the text of blocks: a string if it is one, else parts; None if there is none."""
    found = [text for text in texts(blocks) if text]
    if len(found) < 2:
        return found[0] if found else None
    return [{"type": "text", "text": text} for text in found]


def find_picture(messages: object) -> str | None:
    """Returns the first picture of `messages`, unread JSON, as a path: only the relay lane can serve it."""
    if not isinstance(messages, list):
        return None
    for place, message in enumerate(messages[:MAX_ITEMS]):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and (path := _find_picture(content)) is not None:
            return f"messages.{place}.content.{path}"
    return None


def _find_picture(content: Sequence[object]) -> str | None:
    for place, block in enumerate(content):
        if not isinstance(block, dict):
            return None
        if block.get("type") == PICTURE:
            return f"{place}.type"
        inner = block.get("content")
        if isinstance(inner, list) and (path := _find_picture(inner)) is not None:
            return f"{place}.content.{path}"
    return None
