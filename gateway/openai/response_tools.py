"""Tools as a response's request offers them, and which of them may or must be called.

Knows the tool objects of OpenAI's Responses; not how a model writes a call or how an engine is held to one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from gateway.errors import InvalidRequest
from gateway.language import Forced, Tool
from gateway.openai.response_items import flatten_name
from gateway.openai.tools import MAX_TOOLS, WORD_OR_OBJECT, Name, Parameters, Word
from gateway.wire.fields import OBJECT, TEXT, Labels, WireModel, absence, by_field, refusal, tag
from gateway.wire.tool_plan import ToolPlan, describe_tool


def _check_tool_type(kind: object) -> object:
    if isinstance(kind, str) and kind != "function":
        raise refusal(f"does not support the tool {kind[:100]!r}, only 'function' and namespaces of such")
    return kind


ToolType: TypeAlias = Annotated[Literal["function"], BeforeValidator(_check_tool_type)]


class FunctionTool(WireModel):
    type: ToolType
    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    # No effect by nature
    defer_loading: bool | None = None
    cache_control: Labels | None = None

    def tool(self) -> Tool:
        return Tool(self.name, self.parameters, self.description, bool(self.strict))

    def shown(self) -> Mapping[str, object]:
        """Returns what a response repeats of it."""
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", **fields, "strict": self.strict}


class Namespace(WireModel):
    """Functions that a client keeps together. The model is shown each under both names, as by vLLM."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None  # no effect: templates have no place for it
    tools: Annotated[list[FunctionTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]

    def flat(self) -> Iterator[FunctionTool]:
        for tool in self.tools:
            yield tool.model_copy(update={"name": flatten_name(self.name, tool.name)})

    def shown(self) -> Mapping[str, object]:
        tools = [tool.shown() for tool in self.tools]
        return {"type": "namespace", "name": self.name, "description": self.description, "tools": tools}


_FUNCTION, _NAMESPACE = tag("function"), tag("namespace")

AnyTool: TypeAlias = Annotated[
    Annotated[FunctionTool, _FUNCTION] | Annotated[Namespace, _NAMESPACE],
    by_field("type", {"namespace": _NAMESPACE}, _FUNCTION),
]


class NamedTool(WireModel):
    type: ToolType
    name: Name


def _check_choice(kind: object) -> object:
    return kind if kind == "allowed_tools" else _check_tool_type(kind)


class ChoiceObject(WireModel):
    type: Annotated[Literal["function", "allowed_tools"], BeforeValidator(_check_choice)]
    name: Annotated[Name | None, Field(validate_default=True)] = None
    mode: Annotated[Literal["auto", "required"] | None, Field(validate_default=True)] = None
    tools: Annotated[
        list[NamedTool] | None, Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True, validate_default=True)
    ] = None

    @field_validator("name", "mode", "tools")
    @classmethod
    def _match_type(cls, value: object, info: ValidationInfo) -> object:
        kind = info.data.get("type")
        belongs = kind == ("function" if info.field_name == "name" else "allowed_tools")
        if belongs and value is None:
            raise absence()
        if value is not None and not belongs:
            raise refusal("does not belong to this 'type'")
        return value


ToolChoice: TypeAlias = Annotated[
    Annotated[Word, TEXT] | Annotated[ChoiceObject, OBJECT],
    WORD_OR_OBJECT,
]


def plan_tools(definitions: Sequence[FunctionTool], choice: Word | ChoiceObject, *, parallel: bool) -> ToolPlan | None:
    """Returns None where nothing may be called. Raises InvalidRequest.

    Tools that may not be called are not shown to the model either, which would call them all the same.
    """
    if choice == "none" or (choice == "auto" and not definitions):
        return None
    if not definitions:
        raise InvalidRequest("'tool_choice' is only allowed when 'tools' are given.", param="tool_choice")
    offered = definitions if isinstance(choice, str) else _pick(definitions, choice)
    forced = None
    if isinstance(choice, ChoiceObject):
        forced = Forced(choice.name) if choice.name is not None else Forced() if choice.mode == "required" else None
    elif choice == "required":
        forced = Forced()
    return ToolPlan(
        definitions=tuple(describe_tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in offered),
        tools=tuple(tool.tool() for tool in offered),
        forced=forced,
        parallel=parallel,
    )


def _pick(definitions: Sequence[FunctionTool], choice: ChoiceObject) -> Sequence[FunctionTool]:
    """Returns the allowed tools, or for a named one all. Raises InvalidRequest for a name that is not offered."""
    known = {tool.name for tool in definitions}
    if choice.name is not None:
        if choice.name not in known:
            raise InvalidRequest("'tool_choice.name' is not the name of any of the 'tools'.", param="tool_choice.name")
        return definitions
    allowed = [tool.name for tool in choice.tools or ()]
    for place, name in enumerate(allowed):
        if name not in known:
            where = f"tool_choice.tools.{place}.name"
            raise InvalidRequest(f"'{where}' is not the name of any of the 'tools'.", param=where)
    return [tool for tool in definitions if tool.name in allowed]


def show_choice(choice: Word | ChoiceObject) -> object:
    return choice if isinstance(choice, str) else choice.model_dump(exclude_none=True)
