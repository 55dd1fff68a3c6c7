"""Tools as a chat offers them, which of them may or must be called, and the plan that both come to.

Knows OpenAI's tool objects; not how a model writes a call or how an engine is held to one.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from gateway.errors import InvalidRequest
from gateway.language import Forced, Tool
from gateway.wire.fields import (
    OBJECT,
    TEXT,
    JsonObject,
    Labels,
    NonEmpty,
    WireModel,
    absence,
    by_type,
    check_tool_type,
    refusal,
)
from gateway.wire.tool_plan import ToolPlan, describe_tool

MAX_TOOLS = 128  # OpenAI's limit
Name: TypeAlias = Annotated[NonEmpty, Field(max_length=256)]
ToolType: TypeAlias = Annotated[Literal["function"], BeforeValidator(check_tool_type)]


def _check_parameters(schema: object) -> object:
    """Refuses a schema of anything but an object: a call's arguments are one, also where a schema leaves that open."""
    if isinstance(schema, dict) and schema.get("type", "object") != "object":
        raise refusal("must describe an object")
    return schema


Parameters: TypeAlias = Annotated[JsonObject, BeforeValidator(_check_parameters)]


class FunctionDefinition(WireModel):
    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None
    cache_control: Labels | None = None  # Anthropic's, without effect


class ToolDefinition(WireModel):
    type: ToolType
    function: FunctionDefinition
    cache_control: Labels | None = None

    def plain(self) -> Mapping[str, object]:
        function = self.function
        return describe_tool(function.name, function.description, function.parameters, function.strict)

    def tool(self) -> Tool:
        function = self.function
        return Tool(function.name, function.parameters, function.description, bool(function.strict))


Definitions: TypeAlias = Annotated[list[ToolDefinition], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class NamedFunction(WireModel):
    name: Name


class NamedTool(WireModel):
    type: ToolType
    function: NamedFunction


class AllowedTools(WireModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class ChoiceObject(WireModel):
    type: Annotated[Literal["function", "allowed_tools"], BeforeValidator(check_tool_type)]
    function: Annotated[NamedFunction | None, Field(validate_default=True)] = None
    allowed_tools: Annotated[AllowedTools | None, Field(validate_default=True)] = None

    @field_validator("function", "allowed_tools")
    @classmethod
    def _match_type(cls, value: WireModel | None, info: ValidationInfo) -> WireModel | None:
        is_chosen = info.data.get("type") == info.field_name
        if is_chosen and value is None:
            raise absence()
        if value is not None and not is_chosen:
            raise refusal(f"is only allowed when 'type' is '{info.field_name}'")
        return value


Word: TypeAlias = Literal["none", "auto", "required"]
WORD_OR_OBJECT = by_type("must be 'none', 'auto', 'required' or an object that names tools")
ToolChoice: TypeAlias = Annotated[
    Annotated[Word, TEXT] | Annotated[ChoiceObject, OBJECT],
    WORD_OR_OBJECT,
]


def plan_tools(
    definitions: Sequence[ToolDefinition] | None, choice: Word | ChoiceObject | None, *, parallel: bool
) -> ToolPlan | None:
    """Returns None where nothing may be called. Raises InvalidRequest.

    Tools that may not be called are not shown to the model either, which would call them all the same.
    """
    if choice == "none":
        return None
    if definitions is None:
        if choice in {None, "auto"}:
            return None
        raise InvalidRequest("'tool_choice' is only allowed when 'tools' are given.", param="tool_choice")
    offered = definitions if isinstance(choice, str | None) else _pick(definitions, choice)
    return ToolPlan(
        definitions=tuple(definition.plain() for definition in offered),
        tools=tuple(definition.tool() for definition in offered),
        forced=_force(choice),
        parallel=parallel,
    )


def _force(choice: Word | ChoiceObject | None) -> Forced | None:
    match choice:
        case "required" | ChoiceObject(allowed_tools=AllowedTools(mode="required")):
            return Forced()
        case ChoiceObject(function=NamedFunction(name=name)):
            return Forced(name)
    return None


def _pick(definitions: Sequence[ToolDefinition], choice: ChoiceObject) -> Sequence[ToolDefinition]:
    """Returns the allowed tools, or for a named function all tools. Raises InvalidRequest for a name not offered."""
    allowed = choice.allowed_tools
    named = [choice.function] if allowed is None else [tool.function for tool in allowed.tools]
    known = {definition.function.name for definition in definitions}
    for place, function in enumerate(named):
        if function is not None and function.name not in known:
            where = "tool_choice.function" if allowed is None else f"tool_choice.allowed_tools.tools.{place}.function"
            raise InvalidRequest(f"'{where}.name' is not the name of any of the 'tools'.", param=f"{where}.name")
    if allowed is None:
        return definitions
    chosen = {tool.function.name for tool in allowed.tools}
    return [definition for definition in definitions if definition.function.name in chosen]
