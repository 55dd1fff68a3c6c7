"""POST /v1/responses: the body, how its items become a prompt, and what the response repeats of it.

Every field is honoured, has no effect by nature, or is refused by name (docs/responses.md lists them); none is dropped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import orjson
from pydantic import Field, model_validator

from gateway.core import GenerateRequest, Guide, GuideKind, Need, Prompt
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage, Rendering
from gateway.openai.response_frames import ResponseFold, ResponseStream, Shown
from gateway.openai.response_items import (
    Input,
    Message,
    PlainMessage,
    dump_items,
    find_picture,
    flatten_name,
    plain_chat,
    read_items,
)
from gateway.openai.response_tools import AnyTool, FunctionTool, Namespace, ToolChoice, plan_tools, show_choice
from gateway.openai.sampling import Sampled, Tier
from gateway.openai.tools import MAX_TOOLS
from gateway.wire.answer import ChoiceParts, Parsing, Place
from gateway.wire.body import Envelope
from gateway.wire.choice import NotingDecoder
from gateway.wire.fields import (
    JsonObject,
    Labels,
    NonEmpty,
    Only,
    Refused,
    WireModel,
    refusal,
)
from gateway.wire.guides import schema_guide
from gateway.wire.keeper import Keeper, Kept
from gateway.wire.logprobs import Details, ListedScores
from gateway.wire.rendering import Variables, add_effort
from gateway.wire.tool_plan import ToolPlan

SCORES, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"


class TextFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    name: NonEmpty | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _match_type(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise refusal("has a 'schema' if its 'type' is 'json_schema', and only then")
        return self

    def guide(self) -> Guide | None:
        if self.schema_ is not None:
            return schema_guide(self.schema_, "text.format")
        return Guide(GuideKind.JSON) if self.type == "json_object" else None

    def shown(self) -> Mapping[str, object]:
        if self.schema_ is None:
            return {"type": self.type}
        fields = {"name": self.name, "description": self.description, "schema": self.schema_, "strict": self.strict}
        return {"type": self.type, **fields}


class TextConfig(WireModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # no effect by nature


class ReasoningConfig(WireModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    # No effect: reasoning is shown as it is, and no summary is made of it.
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(WireModel):
    include_obfuscation: bool = False  # no effect: it pads events, whose lengths would show their texts' on the way


Included: TypeAlias = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Of items that there are none of
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponsesRequest(Sampled):
    prompt_field: ClassVar[str] = "input"

    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, default_factory=list, fail_fast=True)]
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Included], Field(max_length=16, default_factory=list)]
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    chat_template_kwargs: Variables | None = None  # vLLM's extension
    service_tier: Tier | None = None

    # No effect by nature: they label, bill or cache, or limit what there is none of.
    stream_options: StreamOptions | None = None
    metadata: Labels | None = None
    client_metadata: JsonObject | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None  # of built-in tools
    # Without effect where no responses are kept (the setting responses.keep); each response shows which it is.
    store: bool | None = None
    previous_response_id: NonEmpty | None = None

    # Refused, but for the value that asks for nothing
    conversation: Refused = None
    prompt: Refused = None
    background: Annotated[object, Only(False)] = None
    context_management: Annotated[object, Only([])] = None

    @classmethod
    def find_relay_field(cls, document: dict[str, object]) -> str | None:
        return find_picture(document.get("input"))

    @model_validator(mode="after")
    def _agree(self) -> Self:
        form = None if self.text is None or self.text.format is None else self.text.format
        if form is not None and form.type != "text" and self.structured_outputs is not None:
            reason = "'structured_outputs' and 'text.format' say what an answer must match; send one."
            raise InvalidRequest(reason, param="structured_outputs")
        return self

    @property
    def tier(self) -> Tier | None:
        return self.service_tier

    @property
    def token_limit(self) -> tuple[str, int | None]:
        return "max_output_tokens", self.max_output_tokens

    @property
    def logprob_count(self) -> int | None:
        return self.top_logprobs if SCORES in self.include else None

    @cached_property
    def tool_plan(self) -> ToolPlan | None:
        return plan_tools(self._functions, self.tool_choice, parallel=self.parallel_tool_calls)

    @property
    def _functions(self) -> Sequence[FunctionTool]:
        """All functions, under the names that the model is shown."""
        return [
            function for tool in self.tools for function in (tool.flat() if isinstance(tool, Namespace) else (tool,))
        ]

    @property
    def _namespaces(self) -> Mapping[str, tuple[str, str]]:
        """By the name that the model is shown, a function's namespace and its name there."""
        return {
            flatten_name(tool.name, function.name): (tool.name, function.name)
            for tool in self.tools
            if isinstance(tool, Namespace)
            for function in tool.tools
        }

    @cached_property
    def text_guide(self) -> Guide | None:
        if self.structured_outputs is not None:
            return self.structured_outputs.guide()
        return None if self.text is None or self.text.format is None else self.text.format.guide()

    @property
    def text_guide_field(self) -> str:
        return "text.format" if self.structured_outputs is None else "structured_outputs"

    def sampling_needs(self) -> Mapping[Need, str]:
        needs = dict(super().sampling_needs())
        if Need.LOGPROBS in needs:
            needs[Need.LOGPROBS] = "include"
        return needs

    def resolve(self, keeper: Keeper | None) -> Self:
        """Puts the earlier conversation before the input. Raises InvalidRequest where nothing is kept."""
        if self.previous_response_id is None:
            return self
        if keeper is None:
            reason = "'previous_response_id' needs kept responses; this gateway keeps none ('responses.keep')."
            raise InvalidRequest(reason, param="previous_response_id")
        before = keeper.find(self.previous_response_id)
        items = [*orjson.loads(before.items), *orjson.loads(before.response)["output"]]
        own = read_items(dump_items(self.input, ""))
        return self.model_copy(update={"input": [*read_items(items), *own]})

    def prompts(self, language: ModelLanguage) -> Sequence[Prompt]:
        how = self._rendering(self.opening(language))
        chat = self._chat()
        try:
            return [self._render(chat, how, language)]
        except ContextLengthExceeded:
            if self.truncation == "disabled":
                raise
        return [self._render_end(chat, how, language)]

    def presenter(self, language: ModelLanguage, envelope: Envelope, prompts: Sequence[Prompt]) -> "ResponsePresenter":
        keeps = envelope.keeper is not None and self.store is not False
        # Ids count up, and whoever knows one could guess another client's.
        response_id = f"resp_{envelope.request_id}{token_hex(16) if keeps else ''}"
        return ResponsePresenter(
            request_id=envelope.request_id,
            head=orjson.dumps(self._describe(envelope, response_id, keeps=keeps))[:-1],
            keep=self._keep(envelope.keeper, response_id, envelope.request_id)
            if envelope.keeper is not None and keeps
            else None,
            stream=self.stream,
            stop=self.stop_strings,
            include_stop=self.include_stop_str_in_output,
            # A guide allows what an answer holds; a special token in it is text, without which it would be no JSON.
            shows_special=self.is_guided or not self.skip_special_tokens,
            scores=self.logprob_count is not None,
            seals=SEALED in self.include,
            namespaces=self._namespaces,
            parsing=self.parsing(language, prompts[0]),
        )

    def _keep(self, keeper: Keeper, response_id: str, request_id: str) -> Callable[[bytes], None]:
        """Returns what keeps the response of this request."""
        items = orjson.dumps(dump_items(self.input, request_id))
        return lambda response: keeper.keep(response_id, Kept(response, items))

    def _chat(self) -> list[PlainMessage]:
        first: list[PlainMessage] = []
        if self.instructions:
            first.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*first, {"role": "user", "content": self.input}]
        return [*first, *plain_chat(self.input)]

    def _rendering(self, opening: str) -> Rendering:
        effort = None if self.reasoning is None else self.reasoning.effort
        return Rendering(
            tools=None if self.tool_plan is None else self.tool_plan.definitions,
            add_generation_prompt=not self._continues,
            continue_final_message=self._continues,
            variables=add_effort(self.chat_template_kwargs, effort),
            ends_reasoning=self.ends_reasoning,
            opening=opening,
        )

    @property
    def _continues(self) -> bool:
        """Whether the answer goes on with the last message, which is the model's own and was cut off, as in vLLM."""
        last = None if isinstance(self.input, str) else self.input[-1]
        if not isinstance(last, Message) or last.role != "assistant":
            return False
        return last.status in {"in_progress", "incomplete"}

    def _render(self, chat: Sequence[PlainMessage], how: Rendering, language: ModelLanguage) -> Prompt:
        """Raises ContextLengthExceeded if no room for an answer is left."""
        prompt = language.render_chat(chat, how)
        language.fit(prompt, None, prompt_param=self.prompt_field)
        return prompt

    def _render_end(self, chat: Sequence[PlainMessage], how: Rendering, language: ModelLanguage) -> Prompt:
        """Drops as few messages as can be from the beginning of the conversation, but for a system's.

        Raises ContextLengthExceeded if even the last message does not fit.
        """
        kept = [message for message in chat if message["role"] in {"system", "developer"}]
        others = [message for message in chat if message["role"] not in {"system", "developer"}]
        # A result without its call would mean nothing, so that a conversation begins with neither.
        starts = [place for place, message in enumerate(others) if place and message["role"] == "user"]
        low, high, found = 0, len(starts) - 1, None
        while low <= high:
            middle = (low + high) // 2
            try:
                found = self._render([*kept, *others[starts[middle] :]], how, language)
                high = middle - 1
            except ContextLengthExceeded:
                low = middle + 1
        return found if found is not None else self._render(chat, how, language)

    def _describe(self, envelope: Envelope, response_id: str, *, keeps: bool) -> Mapping[str, object]:
        """Returns the response's fields that do not depend on the answer."""
        form = None if self.text is None else self.text.format
        reasoning = self.reasoning
        # Left out unless asked for: in Open Responses' schema it is no null.
        verbosity = {} if self.text is None or self.text.verbosity is None else {"verbosity": self.text.verbosity}
        return {
            "id": response_id,
            "object": "response",
            "created_at": envelope.created,
            "model": self.model,
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary,
            },
            "store": keeps,
            "temperature": self.temperature,
            "text": {"format": {"type": "text"} if form is None else form.shown(), **verbosity},
            "tool_choice": show_choice(self.tool_choice),
            "tools": [tool.shown() for tool in self.tools],
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "truncation": self.truncation,
            "service_tier": "default" if self.service_tier in {None, "auto"} else self.service_tier,
            "metadata": dict(self.metadata or {}),
            "user": self.user,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }


@dataclass(frozen=True, slots=True)
class ResponsePresenter:
    """The answer.Presenter of /v1/responses."""

    request_id: str
    head: bytes
    keep: Callable[[bytes], None] | None
    stream: bool
    stop: tuple[str, ...]
    include_stop: bool
    shows_special: bool
    scores: bool
    seals: bool
    namespaces: Mapping[str, tuple[str, str]]
    parsing: Parsing | None

    def choice(self, language: ModelLanguage, request: GenerateRequest, place: Place) -> ChoiceParts:
        parsing = self.parsing
        decoder = language.decoder(
            request,
            self.stop,
            include_stop=self.include_stop,
            shows_special=self.shows_special,
            shows_markers=parsing is not None,
        )
        details = Details(ListedScores(language.spell) if self.scores else None)
        shown = Shown(
            self.request_id,
            self.head,
            place.group,
            details,
            parser=None if parsing is None else parsing.parser(),
            seals=self.seals,
            namespaces=self.namespaces,
            keep=self.keep,
            clock=time.time,
            count=lambda: decoder.completion_tokens,
        )
        frames = ResponseStream(shown) if self.stream else ResponseFold(shown)
        if not self.scores:
            return ChoiceParts(decoder, frames)
        return ChoiceParts(NotingDecoder(decoder, details), frames, details)
