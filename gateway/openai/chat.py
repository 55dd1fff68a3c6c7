"""POST /v1/chat/completions: the body, and how its messages become a prompt.

Knows OpenAI's chat objects; not templates, tokens or HTTP.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from gateway.core import Prompt
from gateway.language import ModelLanguage
from gateway.openai.frames import CHAT, Dialect
from gateway.openai.generation import Generation
from gateway.openai.messages import Content, find_relayed_part
from gateway.openai.rendering import RenderedChat
from gateway.openai.tools import ToolChoice, plan_tools
from gateway.wire.fields import Labels, Only, Refused, WireModel, refusal
from gateway.wire.rendering import add_effort
from gateway.wire.tool_plan import ToolPlan


class Prediction(WireModel):
    type: Literal["content"]
    content: Content


class ChatCompletionRequest(RenderedChat, Generation):
    dialect: ClassVar[Dialect] = CHAT
    prompt_field: ClassVar[str] = "messages"

    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    # No effect by nature
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Labels | None = None
    prediction: Prediction | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    # For the relay lane alone, but for the value that asks for nothing
    modalities: Annotated[object, Only(["text"])] = None
    audio: Refused = None

    # Refused, but for the value that asks for nothing
    include_reasoning: Annotated[object, Only(True)] = None
    function_call: Annotated[object, Only("none")] = None
    functions: Refused = None
    moderation: Refused = None
    web_search_options: Refused = None
    chat_template: Refused = None
    documents: Refused = None
    mm_processor_kwargs: Refused = None

    @classmethod
    def find_relay_field(cls, document: dict[str, object]) -> str | None:
        modalities = document.get("modalities")
        if isinstance(modalities, list) and "audio" in modalities:
            return "modalities"
        if document.get("audio") is not None:
            return "audio"
        return find_relayed_part(document.get("messages"))

    @field_validator("top_logprobs")
    @classmethod
    def _show_beside_logprobs(cls, count: int, info: ValidationInfo) -> int:
        if count and not info.data.get("logprobs", True):
            raise refusal("is only allowed when 'logprobs' is true")
        return count

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return super().token_limit
        return "max_completion_tokens", self.max_completion_tokens

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @cached_property
    def tool_plan(self) -> ToolPlan | None:
        return plan_tools(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)

    def prompts(self, language: ModelLanguage) -> Sequence[Prompt]:
        opening = self.opening(language)
        messages = [message.plain() for message in self.messages]
        variables = add_effort(self.chat_template_kwargs, self.reasoning_effort)
        how = self.rendering(self.tool_plan, variables, opening, ends_reasoning=self.ends_reasoning)
        return [language.render_chat(messages, how, add_special_tokens=self.add_special_tokens)]
