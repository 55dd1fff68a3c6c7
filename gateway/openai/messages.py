"""The messages of a chat, one model for each role, and what a chat template reads of them.

Finds the parts that only an engine with eyes or ears can read. Knows OpenAI's message objects; not templates.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
    Refused,
    WireModel,
    by_field,
    by_type,
    check_tool_type,
    refusal,
    refuse_bulky,
    tag,
)

# OpenAI's, then vLLM's: what the token lane has no tokens for.
RELAYED_PARTS = frozenset({
    "image_url",
    "input_audio",
    "file",
    "video_url",
    "audio_url",
    "image_embeds",
    "audio_embeds",
    "prompt_embeds",
})


def _check_part_type(kind: object) -> object:
    if isinstance(kind, str) and (kind in RELAYED_PARTS or kind == "refusal"):
        raise refusal(f"does not support {kind!r} here, only 'text'")
    return kind


class TextPart(WireModel):
    type: Annotated[Literal["text"], BeforeValidator(_check_part_type)]
    text: str
    prompt_cache_breakpoint: Labels | None = None  # no effect by nature
    cache_control: Labels | None = None  # nor has Anthropic's, which clients of several servers send


class RefusalPart(WireModel):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


TEXT_PART, REFUSAL_PART = tag("text part"), tag("refusal part")

SpokenPart: TypeAlias = Annotated[
    Annotated[TextPart, TEXT_PART] | Annotated[RefusalPart, REFUSAL_PART],
    by_field("type", {"refusal": REFUSAL_PART}, TEXT_PART),
]
_BY_TYPE = by_type("must be a string or a list of text parts")
_SOME = Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)
Content: TypeAlias = Annotated[Annotated[str, TEXT] | Annotated[list[TextPart], _SOME, ITEMS], _BY_TYPE]
SpokenContent: TypeAlias = Annotated[Annotated[str, TEXT] | Annotated[list[SpokenPart], _SOME, ITEMS], _BY_TYPE]


def plain_content(content: str | Sequence[TextPart | RefusalPart]) -> object:
    return content if isinstance(content, str) else [{"type": "text", "text": part.text} for part in content]


def find_relayed(parts: Sequence[object]) -> int | None:
    """Returns the place of the first relayed part; looks no further than a part that validation will refuse."""
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            return None
        if kind in RELAYED_PARTS:
            return place
    return None


def _named(name: str | None) -> Mapping[str, object]:
    return {} if name is None else {"name": name}


def _check_role(role: object) -> object:
    if role == "function":
        raise refusal("does not support 'function', which OpenAI has replaced by 'tool'")
    return role


class Message(WireModel):
    """The base of messages. By itself, it is one of an unknown role, validated only for the error that it gives."""

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_check_role)]
    id: str | None = None  # a client's own
    cache_control: Labels | None = None

    @abstractmethod
    def plain(self) -> Mapping[str, object]:
        """Returns what a chat template reads."""


class PromptMessage(Message):
    role: Literal["system", "developer", "user"]
    content: Content
    name: NonEmpty | None = None

    def plain(self) -> Mapping[str, object]:
        return {"role": self.role, "content": plain_content(self.content), **_named(self.name)}


class ToolMessage(Message):
    role: Literal["tool"]
    content: Content
    tool_call_id: NonEmpty
    name: NonEmpty | None = None

    def plain(self) -> Mapping[str, object]:
        content = plain_content(self.content)
        return {"role": "tool", "content": content, "tool_call_id": self.tool_call_id, **_named(self.name)}


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def read_arguments(arguments: object) -> object:
    """Parses a call's arguments, because templates want an object. Where a model wrote none, they get an empty one.

    As in vLLM: a call is history, and a chat that holds a malformed one would be refused at every later turn.
    """
    if isinstance(arguments, dict):
        return arguments  # as some servers send them
    if not isinstance(arguments, str):
        raise refusal("must be a string of JSON")
    refuse_bulky(arguments)
    try:
        # Not orjson, which makes floats of long integers: a template is to write the arguments as the model did.
        found = json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class CalledFunction(WireModel):
    name: NonEmpty
    arguments: Annotated[JsonObject, BeforeValidator(read_arguments)]
    parsed_arguments: Annotated[object, Field(exclude=True)] = None  # the Python client's own reading


class ToolCall(WireModel):
    id: NonEmpty
    type: Annotated[Literal["function"], BeforeValidator(check_tool_type)]
    function: CalledFunction
    index: Annotated[int | None, Field(exclude=True)] = None  # of the stream it came in


class AssistantMessage(Message):
    role: Literal["assistant"]
    content: SpokenContent | None = None
    name: NonEmpty | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_ITEMS, default_factory=list, fail_fast=True)]
    reasoning: str | None = None
    reasoning_content: str | None = None
    parsed: object = None  # the Python client's own reading of the content
    annotations: Annotated[object, Only([])] = None  # official clients send an answer back with all of its fields
    reasoning_details: Annotated[list[JsonObject], Field(max_length=MAX_ITEMS)] | None = None  # OpenRouter's
    prefix: Annotated[object, Only(False)] = None  # Mistral's and DeepSeek's name of continue_final_message
    function_call: Refused = None
    audio: Refused = None

    def plain(self) -> Mapping[str, object]:
        plain: dict[str, object] = {"role": "assistant", "content": self._text(), **_named(self.name)}
        reasoning = self.reasoning if self.reasoning is not None else self.reasoning_content
        if reasoning is not None:
            plain |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if self.tool_calls:
            plain["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return plain

    def _text(self) -> object:
        """Returns the content, or else the refusal: templates have no other place for it."""
        if self.content is None:
            return self.refusal
        return plain_content(self.content)


_PROMPT, _ASSISTANT, _TOOL, _UNKNOWN = tag("prompt"), tag("assistant"), tag("tool"), tag("unknown")
_TAG_OF_ROLE = {**dict.fromkeys(("system", "developer", "user"), _PROMPT), "assistant": _ASSISTANT, "tool": _TOOL}
AnyMessage: TypeAlias = Annotated[
    Annotated[PromptMessage, _PROMPT]
    | Annotated[AssistantMessage, _ASSISTANT]
    | Annotated[ToolMessage, _TOOL]
    | Annotated[Message, _UNKNOWN],
    by_field("role", _TAG_OF_ROLE, _UNKNOWN),
]
Messages: TypeAlias = Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]


def find_relayed_part(messages: object) -> str | None:
    """Returns the first part of `messages`, unread JSON, that only the relay lane can serve, as a path."""
    if not isinstance(messages, list):
        return None
    for place, message in enumerate(messages[:MAX_ITEMS]):
        if not isinstance(message, dict):
            return None
        if message.get("audio") is not None:
            return f"messages.{place}.audio"
        content = message.get("content")
        if isinstance(content, list) and (part := find_relayed(content)) is not None:
            return f"messages.{place}.content.{part}.type"
    return None
