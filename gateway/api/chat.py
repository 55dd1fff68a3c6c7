"""POST /v1/chat/completions: the body, and how its messages become a prompt.

Knows OpenAI's chat objects; not templates, tokens or HTTP.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field

from gateway.api.fields import ITEMS, TEXT, Labels, NonEmpty, Only, Refused, WireModel, refusal, text_or_items
from gateway.api.frames import CHAT, Dialect
from gateway.api.generation import Generation
from gateway.core import Prompt
from gateway.language import ModelLanguage

# More than any context holds. Each costs microseconds to check, on a thread that shares the interpreter with the loop.
MOST_ITEMS = 32_768


def _check_role(role: object) -> object:
    if role in ("tool", "function"):  # a tuple: what a client sends may not be hashable
        raise refusal(f"does not support {role!r} yet")
    return role


def _check_part_type(kind: object) -> object:
    if kind in ("image_url", "input_audio", "file", "refusal"):
        raise refusal(f"does not support {kind!r} yet, only 'text'")
    return kind


class TextPart(WireModel):
    type: Annotated[Literal["text"], BeforeValidator(_check_part_type)]
    text: str


Content: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[list[TextPart], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True), ITEMS],
    Discriminator(
        text_or_items,
        custom_error_type="refused",
        custom_error_message="must be a string or a list of text parts",
    ),
]


class Message(WireModel):
    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_check_role)]
    content: Content
    name: NonEmpty | None = None
    tool_calls: Refused = None
    tool_call_id: Refused = None
    function_call: Refused = None
    refusal: Refused = None
    audio: Refused = None

    def plain(self) -> Mapping[str, object]:
        """What a chat template reads. `developer` is OpenAI's newer word for `system`, which templates know."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if isinstance(self.content, str) else [part.model_dump() for part in self.content]
        name = {} if self.name is None else {"name": self.name}
        return {"role": role, "content": content, **name}


class ChatCompletionRequest(Generation):
    dialect: ClassVar[Dialect] = CHAT
    prompt_field: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    # No effect by nature
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Labels | None = None

    # Refused, but for the value that asks for nothing
    response_format: Annotated[object, Only({"type": "text"})] = None
    modalities: Annotated[object, Only(["text"])] = None
    logprobs: Annotated[object, Only(False)] = None
    top_logprobs: Annotated[object, Only(0)] = None
    tool_choice: Annotated[object, Only("none")] = None
    function_call: Annotated[object, Only("none")] = None
    add_generation_prompt: Annotated[object, Only(True)] = None
    continue_final_message: Annotated[object, Only(False)] = None
    chat_template_kwargs: Annotated[object, Only({})] = None
    tools: Refused = None
    functions: Refused = None
    parallel_tool_calls: Refused = None
    audio: Refused = None
    moderation: Refused = None
    prediction: Refused = None
    reasoning_effort: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None
    chat_template: Refused = None
    structured_outputs: Refused = None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return super().token_limit
        return "max_completion_tokens", self.max_completion_tokens

    def encode(self, language: ModelLanguage) -> Prompt:
        return language.render_chat([message.plain() for message in self.messages])
