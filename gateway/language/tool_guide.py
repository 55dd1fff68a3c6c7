"""The tools that a request offers, and the form to which an answer is held that has to call one of them.

JSON schemas come in; out go the markup that a model writes before a call, and a JSON schema of what follows it
(docs/decisions/0026). tool_calls reads such an answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core import Guide, GuideKind
from gateway.errors import InvalidRequest
from gateway.language.schema import Schema, make_holdable
from gateway.language.tool_formats import HERMES_START, MISTRAL_CALLS, ToolFormat

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


# What models write before a call, or before an array of calls; the others begin with the call.
OPENINGS: Mapping[ToolFormat | None, str] = {ToolFormat.HERMES: f"{HERMES_START}\n", ToolFormat.MISTRAL: MISTRAL_CALLS}


def tool_guide(
    tools: Sequence[Tool], forced: Forced, tool_format: ToolFormat | None = None, *, parallel: bool = True
) -> Guide:
    """Returns what an answer is held to after its model's opening. Raises `InvalidRequest(param="tool_choice")`.

    One call as the model writes it; for Mistral's models an array of them, of one unless `parallel`. Without a format
    an array as vLLM makes it, of objects with a name and parameters, or the arguments alone of a named function. Raises
    `InvalidRequest(param="tools")` for a schema that is nested too deeply.
    """
    if forced.name is not None:
        tools = [tool for tool in tools if tool.name == forced.name][:1]
    if not tools:
        missing = "there are no tools" if forced.name is None else f"no tool is named {forced.name!r}"
        raise InvalidRequest(f"tool_choice: a call is required, but {missing}.", param="tool_choice")
    try:
        schema = _make_schema(tools, forced, tool_format, parallel=parallel and forced.name is None)
        return Guide(GuideKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    except RecursionError as exc:
        raise InvalidRequest("tools: a schema is nested too deeply.", param="tools") from exc


def call_or_text_guide(tools: Sequence[Tool], text: Guide) -> Guide:
    """Returns what an answer is held to that is a call in Llama's form or else matches `text`, a guide of JSON.

    Raises `InvalidRequest(param="tools")` for a schema that is nested too deeply or to which no answer can be held.
    """
    call = json.loads(tool_guide(tools, Forced(), ToolFormat.LLAMA3_JSON).text)
    schema: Schema = json.loads(text.text) if text.kind is GuideKind.JSON_SCHEMA else {"type": "object"}
    definitions = {**call.pop("$defs"), "text": _move(schema, "#/$defs/text")}
    either = {"anyOf": [*call.get("anyOf", [call]), {"$ref": "#/$defs/text"}], "$defs": definitions}
    return Guide(GuideKind.JSON_SCHEMA, json.dumps(either, ensure_ascii=False, separators=(",", ":")))


def _make_schema(tools: Sequence[Tool], forced: Forced, tool_format: ToolFormat | None, *, parallel: bool) -> Schema:
    if tool_format is None and forced.name is not None:
        return _parameters(tools[0])
    places = {f"tool{index}": tool for index, tool in enumerate(tools)}
    key = "arguments" if tool_format in {ToolFormat.HERMES, ToolFormat.MISTRAL} else "parameters"
    calls = [_call_of(tool, key, f"#/$defs/{place}") for place, tool in places.items()]
    call: Schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    definitions = {place: _move(_parameters(tool), f"#/$defs/{place}") for place, tool in places.items()}
    if tool_format in {ToolFormat.HERMES, ToolFormat.LLAMA3_JSON}:
        return {**call, "$defs": definitions}
    limit = {} if parallel else {"maxItems": 1}
    return {"type": "array", "items": call, "minItems": 1, **limit, "$defs": definitions}


def _call_of(tool: Tool, key: str, place: str) -> Schema:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool.name]}, key: {"$ref": place}},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _parameters(tool: Tool) -> Schema:
    """Returns the schema of the tool's arguments; adds the type object if it is missing, as arguments are objects.

    What no answer can be held to is left out, unless the tool is `strict`: then it raises InvalidRequest.
    """
    if not tool.parameters:
        return _NO_PARAMETERS
    held, unheld = make_holdable({"type": "object", **tool.parameters})
    if unheld is not None and tool.strict:
        reason = f"'tools': {tool.name} is strict and has a schema with {unheld}, to which no answer can be held."
        raise InvalidRequest(reason, param="tools")
    return held


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
