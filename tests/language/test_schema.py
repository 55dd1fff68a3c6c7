"""Schemas as engines can hold an answer to them: what is rewritten means the same, and what is refused is named."""

import enum
import json
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher
from pydantic import BaseModel, Field, SecretBytes, SecretStr

from gateway.language.schema import Unheld, make_holdable

ANY: list[Any] = [
    None,
    True,
    1,
    "a",
    "ab",
    [],
    [1],
    [1, 1],
    [1, 2],
    ["a", 2],
    {},
    {"a": 1},
    {"b": "x"},
    {"a": 1, "c": 2},
]
VALUES = [*ANY, *({"x": one} for one in ANY), *([one, other] for one, other in product(ANY[:6], ANY[:6]))]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Held(BaseModel):
    path: Path
    secret: SecretStr
    more: SecretBytes
    data: bytes
    by_colour: dict[Literal["red", "blue"], int]
    by_name: dict[Annotated[str, Field(pattern="^[a-z]+$")], int]
    one: Annotated[set[int], Field(max_length=1)]
    colour: Colour | None = None


class Unique(BaseModel):
    tags: set[str]


class Frozen(BaseModel):
    inner: list[frozenset[int]]


@pytest.mark.parametrize(
    ("schema", "simpler"),
    [
        ({"type": "string", "format": "path"}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"uniqueItems": False}, {}),
        ({"uniqueItems": True, "maxItems": 1}, {"maxItems": 1}),
        ({"propertyNames": {"type": "string"}}, {}),
        ({"propertyNames": {}, "dependentRequired": {}, "unevaluatedProperties": True}, {}),
        ({"then": {"type": "string"}, "minContains": 2}, {}),
        ({"if": {"type": "string"}}, {}),
        ({"contains": {"const": 1}, "minContains": 0}, {}),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
            {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": False},
        ),
        (
            {"propertyNames": {"pattern": "^a$", "type": "string"}},
            {"patternProperties": {"^a$": True}, "additionalProperties": False},
        ),
        (
            {"properties": {"a": {}}, "unevaluatedProperties": False},
            {"properties": {"a": {}}, "additionalProperties": False},
        ),
        (
            {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
            {"prefixItems": [{"type": "integer"}], "items": False},
        ),
        (
            {"propertyNames": {"enum": ["a"]}, "unevaluatedProperties": False},
            {"properties": {"a": False}, "additionalProperties": False},
        ),
        ({"additionalProperties": {}, "unevaluatedProperties": False}, {"additionalProperties": {}}),
        ({"anyOf": [{"uniqueItems": False}, {"not": {"const": 1}}][:1]}, {"anyOf": [{}]}),
    ],
)
def test_what_is_rewritten_means_the_same(schema: dict[str, Any], simpler: dict[str, Any]) -> None:
    for outer in (lambda inner: inner, lambda inner: {"properties": {"x": inner}}, lambda inner: {"items": inner}):
        assert make_holdable(outer(schema)) == (outer(simpler), None)
        before, after = Draft202012Validator(outer(schema)), Draft202012Validator(outer(simpler))
        assert [before.is_valid(value) for value in VALUES] == [after.is_valid(value) for value in VALUES]


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("uniqueItems", {"uniqueItems": True}),
        ("uniqueItems", {"uniqueItems": True, "maxItems": 2}),
        ("not", {"not": {}}),
        ("if", {"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
        ("propertyNames", {"propertyNames": {"maxLength": 3}}),
        ("propertyNames", {"propertyNames": {"enum": ["a"]}, "properties": {"b": {}}}),
        ("dependentRequired", {"dependentRequired": {"a": ["b"]}}),
        ("contains", {"contains": {"const": 1}, "maxContains": 2}),
        ("contains", {"contains": {"const": 1}, "minContains": 0, "unevaluatedItems": False}),
        ("if", {"if": {"properties": {"a": True}}, "unevaluatedProperties": False}),
        ("unevaluatedProperties", {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}),
    ],
)
def test_what_no_answer_can_be_held_to_is_named_with_its_place_and_left_out(
    keyword: str, schema: dict[str, Any]
) -> None:
    held, unheld = make_holdable({"properties": {"not": {"items": schema}}})
    assert unheld == Unheld(keyword, "properties.not.items")
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(held))) == ""
    assert make_holdable(held) == (held, None)


def test_a_clients_own_values_are_left_alone() -> None:
    schema = {
        "properties": {"format": {"const": {"uniqueItems": True}}, "not": {"enum": [{"if": 1}]}},
        "default": {"not": 1},
    }
    assert make_holdable(schema) == (schema, None)


def test_what_pydantic_makes_can_be_followed_or_is_named() -> None:
    """By llguidance itself, as strict as engines call it."""
    held, unheld = make_holdable(Held.model_json_schema())
    assert unheld is None
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(held))) == ""
    assert make_holdable(Unique.model_json_schema())[1] == Unheld("uniqueItems", "properties.tags")
    assert make_holdable(Frozen.model_json_schema())[1] == Unheld("uniqueItems", "properties.inner.items")
