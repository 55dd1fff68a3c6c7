"""Tools as a request offers them, and the guide that makes an answer call one.

JSON schemas come in, one JSON schema goes out. The reader of such an answer is in tool_calls.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core import Guide, GuideKind
from gateway.errors import InvalidRequest

Schema = Mapping[str, object]

# What OpenAI makes of a function without parameters: one that takes none.
_NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}

# They would make a schema inside another one a document of its own, and its references would be looked up there.
_OF_A_DOCUMENT = ("$schema", "$id")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments, of plain JSON values."""

    name: str
    parameters: Schema | None = None
    description: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Forced:
    """The answer has to be a call: of the function `name`, or of any that is offered when it is None."""

    name: str | None = None


def tool_guide(tools: Sequence[Tool], forced: Forced | None, *, parallel: bool = True) -> Guide | None:
    """None where no call is forced. Raises `InvalidRequest(param="tool_choice")` or `(param="tools")`.

    For any function: an array of objects with a name and parameters, of one object unless `parallel`. For a named one:
    its arguments and nothing else.
    """
    if forced is None:
        return None
    try:
        schema = _any_of(tools, parallel) if forced.name is None else _arguments_of(tools, forced.name)
        return Guide(GuideKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    except RecursionError as exc:
        raise InvalidRequest("tools: a schema is nested too deeply.", param="tools") from exc


def _arguments_of(tools: Sequence[Tool], name: str) -> Schema:
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise InvalidRequest(f"tool_choice: no tool is named {name!r}.", param="tool_choice")
    return _parameters(tool)


def _any_of(tools: Sequence[Tool], parallel: bool) -> Schema:
    if not tools:
        raise InvalidRequest("tool_choice: a call is required, but there are no tools.", param="tool_choice")
    places = {f"tool{index}": tool for index, tool in enumerate(tools)}
    schema: dict[str, object] = {
        "type": "array",
        "items": {"anyOf": [_call_of(tool, f"#/$defs/{place}") for place, tool in places.items()]},
        "minItems": 1,
        "$defs": {place: _move(_parameters(tool), f"#/$defs/{place}") for place, tool in places.items()},
    }
    if not parallel:
        schema["maxItems"] = 1
    return schema


def _call_of(tool: Tool, place: str) -> Schema:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": {"$ref": place}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _parameters(tool: Tool) -> Schema:
    """Of an object, also where the schema does not say so: arguments are nothing else."""
    return {"type": "object", **tool.parameters} if tool.parameters else _NO_PARAMETERS


def _move(schema: Schema, place: str) -> Schema:
    """The same schema as part of a larger document, where its own definitions are found below `place`.

    The whole schema moves, not its definitions alone: those of two tools may have the same name, and a reference may
    point at anything, its own root included.
    """
    return {key: _point(key, value, place) for key, value in schema.items() if key not in _OF_A_DOCUMENT}


def _point(key: str, value: object, place: str) -> object:
    if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return place + value[1:]
    if isinstance(value, Mapping):
        return {inner: _point(inner, below, place) for inner, below in value.items()}
    if isinstance(value, list):
        return [_point("", below, place) for below in value]
    return value
