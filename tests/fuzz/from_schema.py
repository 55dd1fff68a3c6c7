"""A JSON schema as pydantic writes it in, values that it allows out.

hypothesis-jsonschema does more, and has had no release since February 2024. Schemathesis is kept up, but asks for an
OpenAPI document, which these routes have none of, and holds no event streams against one.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.fuzz.hostile import Strategy, texts

Schema: TypeAlias = Mapping[str, Any]  # Any: JSON
MAX_ITEMS = 3  # of what may be longer


def values(schema: Schema, definitions: Schema) -> Strategy | None:
    """None for an empty schema: code checks such a field, and would refuse most values."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return st.deferred(lambda: _or_null(values(definitions[name], definitions)))
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _either(schema[word], definitions)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    return _of_type(schema, definitions)


def _or_null(strategy: Strategy | None) -> Strategy:
    return st.none() if strategy is None else strategy


def _either(schemas: list[Schema], definitions: Schema) -> Strategy | None:
    known = [strategy for schema in schemas if (strategy := values(schema, definitions)) is not None]
    return st.one_of(known) if known else None


def _of_type(schema: Schema, definitions: Schema) -> Strategy | None:
    match schema.get("type"):
        case "array":
            return _array(schema, definitions)
        case "object":
            return _object(schema, definitions)
        case str(kind):
            return ATOMS[kind](schema)
    return None


def _number(schema: Schema) -> Strategy:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    return st.floats(
        least if above is None else above,
        schema.get("maximum"),
        exclude_min=above is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _text(schema: Schema) -> Strategy:
    least = schema.get("minLength", 0)
    return texts.filter(lambda text: len(text) >= least)


ATOMS: Mapping[str, Callable[[Schema], Strategy]] = {
    "null": lambda _: st.none(),
    "boolean": lambda _: st.booleans(),
    "integer": lambda schema: st.integers(*_range(schema)),
    "number": _number,
    "string": _text,
}


def _range(schema: Schema) -> tuple[int | None, int | None]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - 1
    return least, most


def _array(schema: Schema, definitions: Schema) -> Strategy:
    least = schema.get("minItems", 0)
    most = min(schema.get("maxItems", MAX_ITEMS), least + MAX_ITEMS)
    items = _or_null(values(schema.get("items", {}), definitions))
    return st.lists(items, min_size=least, max_size=most)


def _object(schema: Schema, definitions: Schema) -> Strategy:
    required = set(schema.get("required", ()))
    known = {name: values(inner, definitions) for name, inner in schema.get("properties", {}).items()}
    properties = {name: strategy for name, strategy in known.items() if strategy is not None}
    if properties:
        return st.fixed_dictionaries(
            {name: strategy for name, strategy in properties.items() if name in required},
            optional={name: strategy for name, strategy in properties.items() if name not in required},
        )
    more = schema.get("additionalProperties")
    inner = values(more, definitions) if isinstance(more, Mapping) else None
    return st.dictionaries(texts, texts if inner is None else inner, max_size=MAX_ITEMS)
