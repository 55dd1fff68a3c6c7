"""JSON schemas as engines can hold an answer to them: rewritten where that changes nothing, or refused by the keyword.

A schema comes in as plain JSON values, and goes out so. Which keywords a library knows was read off llguidance 1.7 and
vLLM 0.32 (v1/structured_output); meanings are those of JSON Schema 2020-12. Knows no field of a request.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Schema: TypeAlias = Mapping[str, object]

# Keys whose values are no schemas; whose values are schemas by name; and those that not every library can hold an
# answer to (llguidance none of them), with others that mean nothing without them.
DATA = frozenset({"const", "enum", "default", "examples", "required", "title", "description", "discriminator"})
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
UNHELD: Mapping[str, Sequence[str]] = {
    "uniqueItems": (),
    "not": (),
    "if": ("then", "else"),
    "propertyNames": (),
    "dependentRequired": (),
    "dependentSchemas": (),
    "dependencies": (),
    "contains": ("minContains", "maxContains"),
    "unevaluatedProperties": (),
    "unevaluatedItems": (),
    "$dynamicRef": (),
}
# What llguidance and xgrammar both know. Any other format is a note about the text, and binds nothing.
FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
MAX_PATH = 200  # characters of a client's own names in an error
WITHIN_ITSELF = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas", "contains"})


class Unheld(NamedTuple):
    """A keyword that no answer can be held to, and where in the schema it is; "" at its root."""

    keyword: str
    path: str

    def __str__(self) -> str:
        return f"'{self.keyword}' at {self.path[:MAX_PATH]}" if self.path else f"'{self.keyword}'"


def make_holdable(schema: Schema) -> tuple[Schema, Unheld | None]:
    """Returns the schema without what engines cannot hold an answer to, and the first such keyword that binds."""
    found: list[Unheld] = []
    held = _rewrite_object(schema, (), found)
    return held, found[0] if found else None


def _rewrite(value: object, path: Sequence[str], found: list[Unheld]) -> object:
    if isinstance(value, list):
        return [_rewrite(below, (*path, str(place)), found) for place, below in enumerate(value)]
    return _rewrite_object(value, path, found) if isinstance(value, dict) else value


def _rewrite_object(value: Schema, path: Sequence[str], found: list[Unheld]) -> dict[str, object]:
    schema = {key: _rewrite_below(key, below, (*path, key), found) for key, below in value.items()}
    for simplify in SIMPLIFIED:
        simplify(schema)
    for keyword, company in UNHELD.items():
        if keyword in schema:
            found.append(Unheld(keyword, ".".join(path)))
            _drop(schema, keyword, *company)
    return schema


def _rewrite_below(key: str, value: object, path: Sequence[str], found: list[Unheld]) -> object:
    if key in DATA:
        return value
    if key in BY_NAME and isinstance(value, dict):
        return {name: _rewrite(below, (*path, name), found) for name, below in value.items()}
    return _rewrite(value, path, found)


def _drop_format(schema: dict[str, object]) -> None:
    if schema.get("format") not in FORMATS:
        schema.pop("format", None)


def _drop_idle(schema: dict[str, object]) -> None:
    """Drops keywords whose value or whose company makes them bind nothing."""
    if schema.keys().isdisjoint(UNEVALUATED):  # for which `if` and `contains` count what they match
        if "if" not in schema or schema.keys().isdisjoint({"then", "else"}):
            _drop(schema, "if", "then", "else")
        if "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema):
            _drop(schema, "contains", "minContains", "maxContains")
    for key in ("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"):
        if schema.get(key) in (True, {}, {"type": "string"}):
            del schema[key]
    for key in UNEVALUATED:
        if schema.get(key) in (True, {}):
            del schema[key]


def _drop_unique(schema: dict[str, object]) -> None:
    most = schema.get("maxItems")
    if schema.get("uniqueItems") is False or (isinstance(most, int) and most <= 1):
        _drop(schema, "uniqueItems")


def _name_properties(schema: dict[str, object]) -> None:
    """Makes properties of names that are given by an enumeration or by a pattern, where there are no others."""
    names, value = schema.get("propertyNames"), schema.get("additionalProperties", True)
    if not isinstance(names, dict) or not schema.keys().isdisjoint({"properties", "patternProperties"}):
        return
    match {key: below for key, below in names.items() if key not in {"type", "title", "description"}}:
        case {"enum": [*given], **rest} if not rest and all(isinstance(name, str) for name in given):
            schema["properties"] = dict.fromkeys(given, value)
        case {"pattern": str(pattern), **rest} if not rest:
            schema["patternProperties"] = {pattern: value}
        case _:
            return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _settle_unevaluated(schema: dict[str, object]) -> None:
    """Makes an additional value of an unevaluated one, where nothing else in the schema could evaluate it."""
    if schema.keys().isdisjoint(WITHIN_ITSELF):
        for key, simpler in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if key in schema:
                schema.setdefault(simpler, schema.pop(key))


def _drop(schema: dict[str, object], *keys: str) -> None:
    for key in keys:
        schema.pop(key, None)


SIMPLIFIED: Sequence[Callable[[dict[str, object]], None]] = (
    _drop_format,
    _drop_idle,
    _drop_unique,
    _settle_unevaluated,  # before properties are named, which evaluates them
    _name_properties,
)
