"""The declared shapes of /v1/messages and /v1/messages/count_tokens: Anthropic's, one strict type for each object."""

from typing import Annotated, Any, Literal

from pydantic import Field

from tests.fuzz.shapes import LONGEST_MESSAGE, Count, Shape


class Usage(Shape):
    input_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Count


class Text(Shape):
    type: Literal["text"]
    text: str


class Thinking(Shape):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, Field(min_length=1)]


class ToolUse(Shape):
    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: str
    input: dict[str, Any]  # JSON


class Message(Shape):
    id: Annotated[str, Field(pattern=r"^msg_[0-9a-f]{32}$")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[list[Text | Thinking | ToolUse], Field(min_length=1)]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: Usage


class Counted(Shape):
    input_tokens: Count


TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
}


class Fault(Shape):
    type: str
    message: Annotated[str, Field(min_length=1, max_length=LONGEST_MESSAGE)]


class Error(Shape):
    type: Literal["error"]
    error: Fault
    request_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
