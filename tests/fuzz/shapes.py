"""The answers' declared shapes, OpenAI's with vLLM's extensions: one strict type for each object a client may be sent.

A field with a default may be absent; null is an error unless the type allows it, and so is any other field. Knows no
HTTP; what the events of one stream have in common is in exchange.py.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count: TypeAlias = Annotated[int, Field(ge=0)]
Created: TypeAlias = Annotated[int, Field(gt=1_700_000_000)]
LogProb: TypeAlias = Annotated[float, Field(ge=-9999, le=1e-3, allow_inf_nan=False)]  # rounding may leave it above 0
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]
PromptIds: TypeAlias = Annotated[list[Count], Field(min_length=1)]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Usage(Shape):
    prompt_tokens: Annotated[int, Field(ge=1)]
    completion_tokens: Count
    total_tokens: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _adds_up(self) -> "Usage":
        if self.prompt_tokens + self.completion_tokens != self.total_tokens:
            raise ValueError("total_tokens is not the sum")
        return self


# Log-probabilities.


class TopScore(Shape):
    token: str
    logprob: LogProb
    bytes: list[Byte]


class Score(TopScore):
    top_logprobs: Annotated[list[TopScore], Field(max_length=20)]


class ChatScores(Shape):
    content: Annotated[list[Score], Field(min_length=1)]
    refusal: None


class TextScores(Shape):
    """An entry per token in each list; a prompt's first token has no log-probability."""

    text_offset: Annotated[list[Count], Field(min_length=1)]
    token_logprobs: list[LogProb | None]
    tokens: list[str]
    top_logprobs: list[dict[str, LogProb] | None]

    @model_validator(mode="after")
    def _is_even(self) -> "TextScores":
        lists: tuple[list[object], ...] = (self.text_offset, self.token_logprobs, self.tokens, self.top_logprobs)  # type: ignore[assignment]  # lists of anything, to be counted
        if len({len(values) for values in lists}) != 1:
            raise ValueError("the lists differ in length")
        return self


# A chat, whole.


class Function(Shape):
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class ToolCall(Shape):
    id: Annotated[str, Field(pattern=r"^(call_[0-9a-f]{24}|[0-9A-Za-z]{9})$")]
    type: Literal["function"]
    function: Function


class Message(Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str = ""
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] = []


class Choice(Shape):
    """What choices have in common. Token ids are there only if asked for, the prompt's once."""

    index: Count
    token_ids: list[Count] = []


class ChatChoice(Choice):
    message: Message
    logprobs: ChatScores | None
    finish_reason: FinishReason


class Answer(Shape):
    created: Created
    model: str
    system_fingerprint: None


class ChatCompletion(Answer):
    id: Annotated[str, Field(pattern=r"^chatcmpl-[0-9a-f]{32}$")]
    object: Literal["chat.completion"]
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Usage
    prompt_token_ids: PromptIds = []  # of a chat, which has one prompt


# A chat, streamed: a choice's chunk holds one thing; the first, where the answer begins with a call, its start too.


class Opening(Shape):
    role: Literal["assistant"]
    content: Literal[""]
    refusal: None


class Content(Shape):
    content: Annotated[str, Field(min_length=1)]


class Reasoning(Shape):
    reasoning: Annotated[str, Field(min_length=1)]


class CallStart(ToolCall):
    index: Count


class CallOpening(Shape):
    role: Literal["assistant"]
    content: None
    tool_calls: Annotated[list[CallStart], Field(min_length=1, max_length=1)]
    refusal: None


class Arguments(Shape):
    arguments: str


class CallArguments(Shape):
    index: Count
    function: Arguments


class Calls(Shape):
    tool_calls: Annotated[list[CallStart | CallArguments], Field(min_length=1)]


class Nothing(Shape):
    pass


class ChatChunkChoice(Choice):
    delta: Opening | CallOpening | Content | Reasoning | Calls | Nothing
    logprobs: ChatScores | None
    finish_reason: FinishReason | None


class Chunk(Answer):
    """`usage` is there with `include_usage`: null, but for the last chunk's, or every one's if asked for."""

    usage: Usage | None = None


class ChatChunk(Chunk):
    id: Annotated[str, Field(pattern=r"^chatcmpl-[0-9a-f]{32}$")]
    object: Literal["chat.completion.chunk"]
    choices: Annotated[list[ChatChunkChoice], Field(max_length=1)]
    prompt_token_ids: PromptIds = []


# A text completion.


class TextChunkChoice(Choice):
    text: str
    logprobs: TextScores | None
    finish_reason: Literal["stop", "length"] | None
    prompt_token_ids: PromptIds = []


class TextChoice(TextChunkChoice):
    finish_reason: Literal["stop", "length"]


class TextCompletion(Answer):
    id: Annotated[str, Field(pattern=r"^cmpl-[0-9a-f]{32}$")]
    object: Literal["text_completion"]
    choices: Annotated[list[TextChoice], Field(min_length=1)]
    usage: Usage


class TextChunk(Chunk):
    id: Annotated[str, Field(pattern=r"^cmpl-[0-9a-f]{32}$")]
    object: Literal["text_completion"]
    choices: Annotated[list[TextChunkChoice], Field(max_length=1)]


# What needs no engine.


class Tokenized(Shape):
    count: Count
    max_model_len: Annotated[int, Field(ge=1)]
    tokens: list[Count]
    token_strs: list[str] | None

    @model_validator(mode="after")
    def _is_counted(self) -> "Tokenized":
        if self.count != len(self.tokens) or (self.token_strs is not None and len(self.token_strs) != self.count):
            raise ValueError("count is not that of the tokens")
        return self


class Detokenized(Shape):
    prompt: str


class Model(Shape):
    id: Annotated[str, Field(min_length=1)]
    object: Literal["model"]
    created: Created
    owned_by: Literal["crossover"]
    max_model_len: Annotated[int, Field(ge=1)] = 1


class Models(Shape):
    object: Literal["list"]
    data: Annotated[list[Model], Field(min_length=1)]


# Errors, of which a healthy gateway with healthy engines has those of 4xx alone.

CODES = {
    400: {"invalid_value", "context_length_exceeded"},
    404: {"model_not_found", "unknown_url"},
    405: {"method_not_allowed"},
    413: {"request_too_large"},
}
LONGEST_MESSAGE = 1000  # that which repeats a prompt is longer


class Fault(Shape):
    message: Annotated[str, Field(min_length=1, max_length=LONGEST_MESSAGE)]
    type: Literal["invalid_request_error"]
    param: str | None
    code: str


class Error(Shape):
    error: Fault
