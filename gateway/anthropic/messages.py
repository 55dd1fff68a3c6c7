"""POST /v1/messages and /v1/messages/count_tokens: the bodies, and how a conversation becomes a prompt.

Every field is honoured, has no effect by nature, or is refused by name (docs/api.md lists them); none is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import orjson
from pydantic import AfterValidator, Field, model_validator

from gateway.anthropic.blocks import AssistantMessage, Messages, SystemMessage, TextContent, find_picture, system_text
from gateway.anthropic.frames import MessageFold, MessageStream, Shown
from gateway.anthropic.tools import Definitions, ToolChoice, plan_tools
from gateway.core import GenerateRequest, Guide, Prompt, SamplingParams
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage, Rendering
from gateway.wire.answer import ChoiceParts, Parsing, Place
from gateway.wire.body import Body, Envelope
from gateway.wire.fields import (
    MAX_STOP_CHARACTERS,
    JsonObject,
    Labels,
    NonEmpty,
    Only,
    Refused,
    StopText,
    WireModel,
    refusal,
)
from gateway.wire.guides import schema_guide
from gateway.wire.parse import Unknown, validate
from gateway.wire.rendering import Variables, add_effort
from gateway.wire.tool_plan import ToolPlan

MAX_STOPS = 16
MIN_THINKING = 1024  # tokens: Anthropic's least budget
KEPT_THINKING = "clear_thinking_20251015"


def _refuse_many_characters(stops: list[str]) -> list[str]:
    """Bounds what is prepared on the event loop to what a chat may have: 16 of the longest would take it 7 ms."""
    if sum(map(len, stops)) > 4 * MAX_STOP_CHARACTERS:
        raise refusal(f"must not have more than {4 * MAX_STOP_CHARACTERS} characters together")
    return stops


StopSequences: TypeAlias = Annotated[
    list[StopText], Field(max_length=MAX_STOPS, fail_fast=True), AfterValidator(_refuse_many_characters)
]


class Thinking(WireModel):
    """`budget_tokens`: without effect but for its checks: no engine's wire has a limit for thinking alone."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None  # without effect: thinking is shown as it is


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]
    name: str | None = None


class OutputConfig(WireModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: Refused = None


class Edit(WireModel):
    """What may be dropped from a conversation: nothing here, so only what keeps everything has its meaning."""

    type: Annotated[object, Only(KEPT_THINKING)]
    keep: Annotated[object, Only("all")] = None


class ContextManagement(WireModel):
    edits: Annotated[list[Edit], Field(max_length=8, default_factory=list)]


class Conversation(WireModel):
    """The fields that decide a prompt, of both endpoints."""

    model: NonEmpty
    messages: Messages
    system: TextContent | None = None
    tools: Definitions | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # what output_config.format was called first
    chat_template_kwargs: Variables | None = None  # vLLM's extension

    # No effect by nature
    cache_control: Labels | None = None

    # Refused, but for the value that asks for nothing
    context_management: ContextManagement | None = None
    mcp_servers: Annotated[object, Only([])] = None
    container: Refused = None

    @cached_property
    def tool_plan(self) -> ToolPlan | None:
        return plan_tools(self.tools, self.tool_choice)

    @property
    def schema_field(self) -> str:
        return "output_format" if self.output_format is not None else "output_config.format"

    @property
    def format(self) -> OutputFormat | None:
        return self.output_format or (None if self.output_config is None else self.output_config.format)

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message, which is the model's own."""
        last = self.messages[-1]
        return isinstance(last, AssistantMessage) and last.is_open

    def plain(self, language: ModelLanguage) -> Sequence[dict[str, object]]:
        """Returns what a chat template reads. A system's words come first where it takes them nowhere else."""
        system, messages = [system_text(self.system)], list(self.messages)
        if not language.takes_late_system:
            system += [system_text(message.content) for message in messages if isinstance(message, SystemMessage)]
            messages = [message for message in messages if not isinstance(message, SystemMessage)]
        first = "".join(system)
        plain = [dict(part) for message in messages for part in message.plain()]
        return [{"role": "system", "content": first}, *plain] if first else plain

    def rendering(self, opening: str = "", *, ends_reasoning: bool = False) -> Rendering:
        return Rendering(
            tools=None if self.tool_plan is None else self.tool_plan.definitions,
            add_generation_prompt=not self.continues,
            continue_final_message=self.continues,
            variables=self._variables(),
            ends_reasoning=ends_reasoning,
            opening=opening,
        )

    def _variables(self) -> dict[str, object]:
        effort: str | None = None if self.output_config is None else self.output_config.effort
        if self.thinking is not None and self.thinking.type == "disabled":
            effort = "none"
        return add_effort(self.chat_template_kwargs, effort)


class MessagesRequest(Conversation, Body):
    prompt_field: ClassVar[str] = "messages"

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[StopSequences, Field(default_factory=list)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0  # -1 and 0 both mean off

    # No effect by nature: they label or bill, and an answer is the same without them.
    metadata: JsonObject | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: JsonObject | None = None
    inference_geo: str | None = None
    speed: Literal["standard", "fast"] | None = None

    @classmethod
    def find_relay_field(cls, document: dict[str, object]) -> str | None:
        return find_picture(document.get("messages"))

    @model_validator(mode="after")
    def _agree(self) -> Self:
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            reason = "'thinking.budget_tokens' must be less than 'max_tokens'."
            raise InvalidRequest(reason, param="thinking.budget_tokens")
        return self

    @property
    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", self.max_tokens

    @cached_property
    def text_guide(self) -> Guide | None:
        return None if self.format is None else schema_guide(self.format.schema_, self.schema_field)

    @property
    def text_guide_field(self) -> str:
        return self.schema_field

    def sampling(self, max_tokens: int, guide: Guide | None) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            guide=guide,
        )

    def prompts(self, language: ModelLanguage) -> Sequence[Prompt]:
        opening = self.opening(language)
        how = self.rendering(opening, ends_reasoning=self.ends_reasoning)
        return [language.render_chat(self.plain(language), how)]

    def presenter(self, language: ModelLanguage, envelope: Envelope, prompts: Sequence[Prompt]) -> "MessagePresenter":
        return MessagePresenter(
            request_id=envelope.request_id,
            model=self.model,
            stream=self.stream,
            stop=tuple(self.stop_sequences),
            # A guide allows what an answer holds; a special token in it is text, without which it would be no JSON.
            shows_special=self.is_guided,
            parsing=self.parsing(language, prompts[0]),
        )


@dataclass(frozen=True, slots=True)
class MessagePresenter:
    """The answer.Presenter of /v1/messages."""

    request_id: str
    model: str
    stream: bool
    stop: tuple[str, ...]
    shows_special: bool
    parsing: Parsing | None

    def choice(self, language: ModelLanguage, request: GenerateRequest, place: Place) -> ChoiceParts:
        parsing = self.parsing
        decoder = language.decoder(
            request, self.stop, shows_special=self.shows_special, shows_markers=parsing is not None
        )
        shown = Shown(
            self.request_id,
            self.model,
            place.group,
            parser=None if parsing is None else parsing.parser(),
            find_stop=decoder.find_stop,
        )
        return ChoiceParts(decoder, MessageStream(shown) if self.stream else MessageFold(shown))


class CountRequest(Conversation):
    """A conversation whose tokens are to be counted."""


def count_tokens(document: dict[str, object], language: ModelLanguage, unknown: Unknown = "refuse") -> bytes:
    """Returns how many tokens a conversation's prompt has, even one longer than the context. Raises InvalidRequest."""
    asked = validate(CountRequest, document, unknown)
    if asked.tool_plan is not None:
        asked.tool_plan.check(language)
    return orjson.dumps({"input_tokens": len(language.tokenize_chat(asked.plain(language), asked.rendering()))})
