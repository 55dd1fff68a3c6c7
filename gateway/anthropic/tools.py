"""Tools as a conversation offers them, and which of them may or must be called.

Knows Anthropic's tool objects; not how a model writes a call or how an engine is held to one.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from gateway.errors import InvalidRequest
from gateway.language import Forced, Tool
from gateway.wire.fields import JsonObject, Labels, NonEmpty, WireModel, absence, refusal
from gateway.wire.tool_plan import ToolPlan, describe_tool

MAX_TOOLS = 128
Name: TypeAlias = Annotated[NonEmpty, Field(max_length=256)]


def _check_type(kind: object) -> object:
    if isinstance(kind, str) and kind != "custom":
        raise refusal(f"does not support the tool {kind[:100]!r}, only 'custom'")
    return kind


def _check_schema(schema: object) -> object:
    """Adds the type that Anthropic takes for granted, as vLLM does."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("type", "object") != "object":
        raise refusal("must describe an object")
    return schema if "type" in schema else {**schema, "type": "object"}


class ToolDefinition(WireModel):
    type: Annotated[Literal["custom"], BeforeValidator(_check_type)] = "custom"
    name: Name
    description: str | None = None
    input_schema: Annotated[JsonObject, BeforeValidator(_check_schema)]
    strict: bool | None = None

    # No effect by nature
    cache_control: Labels | None = None
    eager_input_streaming: bool | None = None  # arguments are always streamed as they come
    input_examples: Annotated[list[JsonObject], Field(max_length=64)] | None = None
    defer_loading: bool | None = None  # every tool is in the prompt
    allowed_callers: Annotated[list[str], Field(max_length=8)] | None = None

    def tool(self) -> Tool:
        return Tool(self.name, self.input_schema, self.description, bool(self.strict))


class ToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[Name | None, Field(validate_default=True)] = None
    disable_parallel_tool_use: bool = False

    @field_validator("name")
    @classmethod
    def _match_type(cls, name: str | None, info: ValidationInfo) -> str | None:
        is_named = info.data.get("type") == "tool"
        if is_named and name is None:
            raise absence()
        if name is not None and not is_named:
            raise refusal("is only allowed when 'type' is 'tool'")
        return name


Definitions: TypeAlias = Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)]


def plan_tools(definitions: Sequence[ToolDefinition] | None, choice: ToolChoice | None) -> ToolPlan | None:
    """Returns None where nothing may be called. Raises InvalidRequest."""
    if choice is not None and choice.type == "none":
        return None
    if not definitions:
        if choice is None or choice.type == "auto":
            return None
        raise InvalidRequest("'tool_choice' is only allowed when 'tools' are given.", param="tool_choice")
    if choice is not None and choice.name not in {None, *(tool.name for tool in definitions)}:
        raise InvalidRequest("'tool_choice.name' is not the name of any of the 'tools'.", param="tool_choice.name")
    return ToolPlan(
        definitions=tuple(
            describe_tool(tool.name, tool.description, tool.input_schema, tool.strict) for tool in definitions
        ),
        tools=tuple(tool.tool() for tool in definitions),
        forced=Forced(choice.name) if choice is not None and choice.type in {"any", "tool"} else None,
        parallel=choice is None or not choice.disable_parallel_tool_use,
    )
