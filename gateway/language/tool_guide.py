"""The tools that a request offers, and the guide that forces an answer to call one of them.

JSON schemas come in, one JSON schema goes out. tool_calls reads such an answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core import Guide, GuideKind
from gateway.errors import InvalidRequest

Schema = Mapping[str, object]

# OpenAI takes a function without a schema for one without parameters.
_NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}

# These keys would make an embedded schema a document of its own, and its references would be resolved there.
_DOCUMENT_KEYS = ("$schema", "$id")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments, as plain JSON values."""

    name: str
    parameters: Schema | None = None
    description: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Forced:
    """The answer has to be a call of the function `name`, or of any offered function when `name` is None."""

    name: str | None = None


def tool_guide(tools: Sequence[Tool], forced: Forced | None, *, parallel: bool = True) -> Guide | None:
    """Returns None where no call is forced. Raises `InvalidRequest(param="tool_choice")` or `(param="tools")`.

    For any function the guide asks for an array of objects with a name and parameters, of one object unless `parallel`;
    for a named function it asks for the arguments alone.
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
    """Returns the schema of the tool's arguments; adds the type object if it is missing, as arguments are objects."""
    return {"type": "object", **tool.parameters} if tool.parameters else _NO_PARAMETERS


def _move(schema: Schema, place: str) -> Schema:
    """Returns the schema with its references changed for its new `place` in a larger document.

    The whole schema moves, not its definitions alone: definitions of two tools may have the same name, and a reference
    may point at anything, its own root included.
    """
    return {key: _move_references(key, value, place) for key, value in schema.items() if key not in _DOCUMENT_KEYS}


def _move_references(key: str, value: object, place: str) -> object:
    if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return place + value[1:]
    if isinstance(value, Mapping):
        return {inner: _move_references(inner, below, place) for inner, below in value.items()}
    if isinstance(value, list):
        return [_move_references("", below, place) for below in value]
    return value
