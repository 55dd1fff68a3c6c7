"""The schema that a forced call's answer has to match."""

import json
from collections.abc import Mapping

import pytest

from gateway.core import GuideKind
from gateway.errors import InvalidRequest
from gateway.language.schema import Schema
from gateway.language.tool_formats import ToolFormat
from gateway.language.tool_guide import Forced, Tool, tool_guide

CITY: Schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("weather", CITY, "Returns the weather.")
NOW = Tool("now")
NODE = {"$ref": "#/$defs/Node"}
TREE = Tool(
    "tree",
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/tree",
        "type": "object",
        "properties": {"root": NODE, "twin": {"$ref": "#"}, "$ref": {"type": "string"}},
        "$defs": {"Node": {"type": "object", "properties": {"below": {"type": "array", "items": NODE}}}},
    },
)
GRAPH = Tool(
    "graph", {"type": "object", "properties": {"at": {"anyOf": [NODE]}}, "$defs": {"Node": {"type": "integer"}}}
)


def schema_of(
    *tools: Tool, forced: Forced, tool_format: ToolFormat | None = None, parallel: bool = True
) -> dict[str, object]:
    guide = tool_guide(tools, forced, tool_format, parallel=parallel)
    assert guide.kind is GuideKind.JSON_SCHEMA
    schema = json.loads(guide.text)
    assert isinstance(schema, dict)
    return schema


def look_up(schema: Mapping[str, object], ref: object) -> Mapping[str, object]:
    assert isinstance(ref, str)
    assert ref.startswith("#/")
    found: object = schema
    for name in ref[2:].split("/"):
        assert isinstance(found, Mapping)
        found = found[name]
    assert isinstance(found, Mapping)
    return found


def test_any_call_is_an_array_of_names_each_with_its_own_parameters() -> None:
    schema = schema_of(WEATHER, NOW, forced=Forced())
    assert schema["type"] == "array"
    assert schema["minItems"] == 1
    assert "maxItems" not in schema
    assert isinstance(schema["items"], dict)
    calls = schema["items"]["anyOf"]
    assert [call["properties"]["name"]["enum"] for call in calls] == [["weather"], ["now"]]
    assert [list(call["properties"]) for call in calls] == [["name", "parameters"]] * 2  # engines keep this order
    assert all(call["required"] == ["name", "parameters"] and not call["additionalProperties"] for call in calls)
    parameters = [look_up(schema, call["properties"]["parameters"]["$ref"]) for call in calls]
    assert parameters == [CITY, {"type": "object", "properties": {}, "additionalProperties": False}]


def test_calls_that_may_not_be_parallel_are_one() -> None:
    assert schema_of(WEATHER, forced=Forced(), parallel=False)["maxItems"] == 1


def test_named_function_is_its_parameters_schema() -> None:
    assert schema_of(NOW, WEATHER, forced=Forced("weather")) == CITY
    assert schema_of(TREE, forced=Forced("tree")) == TREE.parameters
    assert schema_of(NOW, forced=Forced("now"))["additionalProperties"] is False


def test_references_lead_to_the_tools_own_definitions() -> None:
    schema = schema_of(TREE, GRAPH, forced=Forced())
    assert isinstance(schema["items"], dict)
    tree, graph = (look_up(schema, call["properties"]["parameters"]["$ref"]) for call in schema["items"]["anyOf"])
    properties = tree["properties"]
    assert isinstance(properties, dict)
    node = look_up(schema, properties["root"]["$ref"])
    assert node["type"] == "object"
    assert isinstance(node["properties"], dict)
    assert look_up(schema, node["properties"]["below"]["items"]["$ref"]) == node
    assert look_up(schema, properties["twin"]["$ref"]) == tree
    assert properties["$ref"] == {"type": "string"}  # a parameter of that name
    assert isinstance(graph["properties"], dict)
    assert look_up(schema, graph["properties"]["at"]["anyOf"][0]["$ref"]) == {"type": "integer"}


def test_moved_schema_is_no_document_of_its_own() -> None:
    schema = schema_of(TREE, forced=Forced())
    assert {"$schema", "$id"}.isdisjoint(look_up(schema, "#/$defs/tool0"))


@pytest.mark.parametrize(
    ("tool_format", "key"), [(ToolFormat.HERMES, "arguments"), (ToolFormat.LLAMA3_JSON, "parameters")]
)
def test_a_call_in_the_models_own_form_is_one_object(tool_format: ToolFormat, key: str) -> None:
    one = schema_of(NOW, WEATHER, forced=Forced("weather"), tool_format=tool_format)
    assert one == {**call_of("weather", key), "$defs": {"tool0": CITY}}
    several = schema_of(WEATHER, NOW, forced=Forced(), tool_format=tool_format)
    assert several["anyOf"] == [call_of("weather", key), call_of("now", key, "tool1")]


@pytest.mark.parametrize(
    ("forced", "parallel", "most"), [(Forced(), True, None), (Forced(), False, 1), (Forced("weather"), True, 1)]
)
def test_mistrals_own_form_is_an_array(forced: Forced, parallel: bool, most: int | None) -> None:
    schema = schema_of(WEATHER, forced=forced, tool_format=ToolFormat.MISTRAL, parallel=parallel)
    assert (schema["type"], schema["items"], schema.get("maxItems")) == ("array", call_of("weather", "arguments"), most)


def call_of(name: str, key: str, place: str = "tool0") -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, key: {"$ref": f"#/$defs/{place}"}},
        "required": ["name", key],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("tools", "forced", "param"),
    [([WEATHER], Forced("whether"), "tool_choice"), ([], Forced(), "tool_choice"), ([], Forced("x"), "tool_choice")],
)
def test_call_of_no_tool_is_refused(tools: list[Tool], forced: Forced, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        tool_guide(tools, forced)
    assert refusal.value.param == param


def test_what_no_answer_can_be_held_to_is_left_out_unless_the_tool_is_strict() -> None:
    tags = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    assert schema_of(Tool("f", tags), forced=Forced("f")) == {**tags, "properties": {"tags": {"type": "array"}}}
    with pytest.raises(InvalidRequest, match=r"'uniqueItems' at properties\.tags") as refusal:
        tool_guide([Tool("f", tags, strict=True)], Forced("f"))
    assert refusal.value.param == "tools"


@pytest.mark.parametrize("forced", [Forced(), Forced("deep")])
def test_schema_without_end_is_refused(forced: Forced) -> None:
    schema: dict[str, object] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest) as refusal:
        tool_guide([Tool("deep", schema)], forced)
    assert refusal.value.param == "tools"
