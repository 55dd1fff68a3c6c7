"""The items of a response's input, and what a chat template reads of them.

Knows OpenAI's objects, and how vLLM 0.32 shows them to a model (entrypoints/openai/responses/utils.py); not templates.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import orjson
from pydantic import BeforeValidator, Discriminator, Field, TypeAdapter

from gateway.openai.messages import read_arguments
from gateway.wire.fields import (
    ITEMS,
    MAX_ITEMS,
    TEXT,
    JsonObject,
    NonEmpty,
    WireModel,
    by_field,
    by_type,
    refusal,
    refuse_type,
    tag,
)

PICTURE = "input_image"  # what the token lane has no tokens for
SEALED = "crossover1."  # how our own `encrypted_content` begins
PlainMessage: TypeAlias = dict[str, object]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


def seal(text: str) -> str:
    """Returns reasoning in the form that clients send back unread. Nothing is hidden: the text is their own."""
    return SEALED + urlsafe_b64encode(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Returns the text of `seal`. Raises a refusal for what another server has encrypted."""
    if not sealed.startswith(SEALED):
        raise refusal("was not made by this gateway")
    try:
        return urlsafe_b64decode(sealed.removeprefix(SEALED)).decode()
    except ValueError as exc:
        raise refusal("was not made by this gateway") from exc


def flatten_name(namespace: str, name: str) -> str:
    """Returns the name under which a model is shown a function of a namespace, as vLLM makes it."""
    return f"{namespace}__{name}"


class Unknown(WireModel):
    """A part or an item of an unknown type, validated only for the error that it gives."""

    type: Annotated[str, BeforeValidator(refuse_type)]


class TextPart(WireModel):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[JsonObject] | None, Field(max_length=MAX_ITEMS)] = None  # no effect: citations
    logprobs: object = None  # no effect: official clients send an answer back with all of its fields
    parsed: object = None  # the Python client's own reading of the text


class RefusalPart(WireModel):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class ThoughtPart(WireModel):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


_TEXT, _REFUSAL, _OTHER = map(tag, ("text part", "refusal part", "other part"))
_PART_TAGS = {**dict.fromkeys(("input_text", "output_text", "text"), _TEXT), "refusal": _REFUSAL}
Part: TypeAlias = Annotated[
    Annotated[TextPart, _TEXT] | Annotated[RefusalPart, _REFUSAL] | Annotated[Unknown, _OTHER],
    by_field("type", _PART_TAGS, _OTHER),
]
Content: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[list[Part], Field(max_length=MAX_ITEMS, fail_fast=True), ITEMS],
    by_type("must be a string or a list of content parts"),
]


def _texts(content: str | Sequence[WireModel]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.text for part in content if isinstance(part, TextPart | RefusalPart)]


class Message(WireModel):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: Content

    # No effect by nature
    id: str | None = None
    status: Status | None = None
    phase: str | None = None

    def add_to(self, chat: list[PlainMessage]) -> None:
        """Adds what it says; to the model's own message before it, if that says nothing yet."""
        if self.role == "assistant":
            last = _last_assistant(chat)
            text = "".join(_texts(self.content))
            if last is not None and last.get("content") is None:
                last["content"] = text
            else:
                chat.append({"role": "assistant", "content": text})
            return
        content = self.content
        parts = content if isinstance(content, str) else [{"type": "text", "text": text} for text in _texts(content)]
        chat.append({"role": self.role, "content": parts})


class FunctionCall(WireModel):
    type: Literal["function_call"]
    call_id: NonEmpty
    name: NonEmpty
    arguments: Annotated[JsonObject, BeforeValidator(read_arguments)]
    namespace: NonEmpty | None = None

    # No effect by nature
    id: str | None = None
    status: Status | None = None
    parsed_arguments: object = None  # the Python client's own reading

    def add_to(self, chat: list[PlainMessage]) -> None:
        name = self.name if self.namespace is None else flatten_name(self.namespace, self.name)
        function = {"name": name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        last = _last_assistant(chat)
        if last is None:
            chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
        else:
            calls = last.setdefault("tool_calls", [])
            assert isinstance(calls, list)
            calls.append(call)


class FunctionResult(WireModel):
    type: Literal["function_call_output"]
    call_id: NonEmpty
    output: Content

    # No effect by nature
    id: str | None = None
    status: Status | None = None

    def add_to(self, chat: list[PlainMessage]) -> None:
        chat.append({"role": "tool", "tool_call_id": self.call_id, "content": "\n".join(_texts(self.output))})


def _check_sealed(sealed: object) -> object:
    if isinstance(sealed, str):
        unseal(sealed)
    return sealed


class Reasoning(WireModel):
    """`encrypted_content`: what `seal` made, for clients that keep nothing else of it."""

    type: Literal["reasoning"]
    summary: Annotated[list[ThoughtPart], Field(max_length=MAX_ITEMS, default_factory=list)]
    content: Annotated[list[ThoughtPart] | None, Field(max_length=MAX_ITEMS)] = None
    encrypted_content: Annotated[str, BeforeValidator(_check_sealed)] | None = None

    # No effect by nature
    id: str | None = None
    status: Status | None = None

    def add_to(self, chat: list[PlainMessage]) -> None:
        parts = self.content or self.summary
        thought = "".join(part.text for part in parts)
        if not self.content and self.encrypted_content is not None:
            thought = unseal(self.encrypted_content)
        reasoning = {"reasoning": thought, "reasoning_content": thought}
        last = _last_assistant(chat)
        if last is not None and "reasoning" not in last:
            last |= reasoning
        else:
            chat.append({"role": "assistant", "content": None, **reasoning})


_MESSAGE, _CALL, _RESULT, _REASONING, _ELSE = map(tag, ("message", "call", "result", "reasoning", "other item"))
_ITEM_TAGS: Mapping[object, str] = {
    "message": _MESSAGE.tag,
    "function_call": _CALL.tag,
    "function_call_output": _RESULT.tag,
    "reasoning": _REASONING.tag,
}


def _item_kind(item: object) -> str:
    if not isinstance(item, dict):
        return _MESSAGE.tag
    kind = item.get("type", "message" if "role" in item else None)
    return _ITEM_TAGS.get(kind, _ELSE.tag) if isinstance(kind, str) else _ELSE.tag


Item: TypeAlias = Annotated[
    Annotated[Message, _MESSAGE]
    | Annotated[FunctionCall, _CALL]
    | Annotated[FunctionResult, _RESULT]
    | Annotated[Reasoning, _REASONING]
    | Annotated[Unknown, _ELSE],
    Discriminator(_item_kind),
]
AnyItem: TypeAlias = Message | FunctionCall | FunctionResult | Reasoning | Unknown
Input: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True), ITEMS],
    by_type("must be a string or a list of items"),
]


JsonItem: TypeAlias = dict[str, object]
_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def dump_items(items: str | Sequence[AnyItem], request_id: str) -> list[JsonItem]:
    """Returns the items as JSON, each with an id: `read_items` reads them again."""
    if isinstance(items, str):
        items = [Message(type="message", role="user", content=items)]
    return [_dump(item, f"{request_id}i{place}") for place, item in enumerate(items)]


def read_items(items: Sequence[JsonItem]) -> list[AnyItem]:
    return _ITEMS.validate_python(items) if items else []


def _dump(item: AnyItem, own_id: str) -> JsonItem:
    # Without warnings: a string where a union has tags is one for pydantic.
    dumped: JsonItem = item.model_dump(exclude_none=True, warnings=False)
    if isinstance(item, FunctionCall):
        dumped["arguments"] = orjson.dumps(item.arguments).decode()
    if isinstance(item, Message) and isinstance(item.content, str):
        of_model = {"type": "output_text", "text": item.content, "annotations": []}
        dumped["content"] = [of_model if item.role == "assistant" else {"type": "input_text", "text": item.content}]
    kind = str(dumped.setdefault("type", "message"))
    return {"id": f"{PREFIXES[kind]}_{own_id}", **dumped}


def plain_chat(items: Iterable[AnyItem]) -> list[PlainMessage]:
    """Returns the messages that a chat template reads; one of the model's may come from several items."""
    chat: list[PlainMessage] = []
    for item in items:
        if not isinstance(item, Unknown):
            item.add_to(chat)
    return chat


def _last_assistant(chat: Sequence[PlainMessage]) -> PlainMessage | None:
    return chat[-1] if chat and chat[-1]["role"] == "assistant" else None


def find_picture(items: object) -> str | None:
    """Returns the first picture of `input`, unread JSON, as a path: only the relay lane can serve it."""
    if not isinstance(items, list):
        return None
    for place, item in enumerate(items[:MAX_ITEMS]):
        for field in ("content", "output"):
            parts = item.get(field) if isinstance(item, dict) else None
            for number, part in enumerate(parts if isinstance(parts, list) else ()):
                if isinstance(part, dict) and part.get("type") == PICTURE:
                    return f"input.{place}.{field}.{number}.type"
    return None
