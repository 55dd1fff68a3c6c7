"""The declared shapes of /v1/responses: Open Responses', one strict type for each object."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tests.fuzz.shapes import Count, Created, Score, Shape


class InputDetails(Shape):
    cached_tokens: Count


class OutputDetails(Shape):
    reasoning_tokens: Count


class Usage(Shape):
    input_tokens: Annotated[int, Field(ge=1)]
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: OutputDetails
    total_tokens: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.input_tokens + self.output_tokens != self.total_tokens:
            raise ValueError("total_tokens is not the sum")
        if self.output_tokens_details.reasoning_tokens > self.output_tokens:
            raise ValueError("more reasoning than output")
        return self


class OutputText(Shape):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[object], Field(max_length=0)]
    logprobs: list[Score]


class ReasoningText(Shape):
    type: Literal["reasoning_text"]
    text: str


class Item(Shape):
    id: str
    status: Literal["completed", "incomplete"]


class Message(Item):
    type: Literal["message"]
    role: Literal["assistant"]
    content: Annotated[list[OutputText], Field(min_length=1, max_length=1)]


class Reasoning(Item):
    type: Literal["reasoning"]
    summary: Annotated[list[object], Field(max_length=0)]
    content: Annotated[list[ReasoningText], Field(min_length=1, max_length=1)]
    encrypted_content: str | None


class FunctionCall(Item):
    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: str


class Incomplete(Shape):
    reason: Literal["max_output_tokens"]


class Effort(Shape):
    effort: str | None
    summary: str | None


class TextConfig(Shape):
    format: dict[str, Any]  # JSON, as it was sent
    verbosity: str = ""


class Response(Shape):
    id: Annotated[str, Field(pattern=r"^resp_[0-9a-f]{32}$")]
    object: Literal["response"]
    created_at: Created
    completed_at: Created | None
    status: Literal["completed", "incomplete"]
    incomplete_details: Incomplete | None
    error: None
    model: str
    output: Annotated[list[Message | Reasoning | FunctionCall], Field(min_length=1)]
    usage: Usage
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: Effort
    store: Literal[False]
    temperature: float
    text: TextConfig
    tool_choice: str | dict[str, Any]  # JSON, as it was sent
    tools: list[dict[str, Any]]  # JSON, as they were sent
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    service_tier: str
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None

    @model_validator(mode="after")
    def _ended(self) -> Self:
        is_complete = self.status == "completed"
        if (self.completed_at is not None) != is_complete or (self.incomplete_details is None) != is_complete:
            raise ValueError("the status and its details differ")
        return self
