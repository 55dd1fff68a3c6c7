"""What a client may want an answer to match: schemas, regular expressions, grammars, sound ones and others.

Strategies for hypothesis; know no endpoint.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.fuzz.hostile import Strategy, anything, often, texts
from tests.reference_world import CITY_SCHEMA

names: Strategy = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
schemas: Strategy = st.recursive(
    st.sampled_from((
        {"type": "string"}, {"type": "string", "pattern": "[a-z]+"}, {"type": "string", "maxLength": 5},
        {"type": "integer"}, {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "number"}, {"type": "boolean"},
        {"type": "null"}, {"type": ["string", "null"]}, {"enum": ["a", 1, None]}, {"const": {"a": [1]}}, {},
        CITY_SCHEMA,
    )),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1}, inner),
        st.builds(lambda each: {"anyOf": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
        ),
        st.builds(lambda inside: {"$ref": "#/$defs/it", "$defs": {"it": inside}}, inner),
    ),
    max_leaves=5,
)  # fmt: skip
# Schemas that are wrong, that nothing matches, or that are more than they seem.
WILD: Sequence[object] = (
    {"$ref": "#"}, {"$ref": "#/$defs/nowhere"}, {"$ref": "http://127.0.0.1:1/schema.json"},
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, {"type": "nonsense"}, {"type": []},
    {"enum": []}, {"not": {}}, {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"type": "integer", "minimum": 9, "maximum": 0},
    {"type": "integer", "multipleOf": 0}, {"type": "number", "minimum": -1e308, "exclusiveMaximum": 1e308},
    {"type": "array", "minItems": 1_000_000}, {"type": "array", "items": {}, "maxItems": 10_000, "uniqueItems": True},
    {"type": "string", "minLength": 10**9}, {"type": "string", "minLength": 2, "maxLength": 1},
    {"type": "string", "pattern": "(("}, {"type": "string", "pattern": "^(?!a)(?<=b)\\1$"},
    {"type": "string", "format": "date-time"},
    {"type": "object", "patternProperties": {"^a": {"type": "string"}}, "minProperties": 3},
    {"type": "object", "properties": {'"\\\n': {}, "": {}, "\x00": {}}, "required": ["absent"]},
    {"if": {"type": "string"}, "then": {"const": "a"}}, {"enum": ["é\U0001f600", "\x00", {"a": {"b": [None]}}, 1e300]},
)  # fmt: skip
any_schema: Strategy = often(
    (6, schemas), (2, st.sampled_from(WILD)), (1, st.dictionaries(texts, anything, max_size=3))
)
PATTERNS = (
    r"[a-z]{2,5}", r"\d+", "(yes|no)", ".*", "[^x]", "a{2}b?", r"\w\s\p{L}", "(?i)yes", "[", "(?=a)b", "^a$", r"(a)\1",
    "((a+)+)+$", "(a{0,1000}){0,1000}", "a{99999999}", "(" * 500 + ")" * 500, r"[^\s\S]", "|",
    "[\U0001f600-\U0001f64f]{3}",
)  # fmt: skip
GRAMMARS = (
    'root ::= "yes" | "no"', 'start: "yes" | "no"', "root ::= root", "root ::= nowhere", "start: start start |",
    'start: /[a-z]+/ "."', "start: " + "(" * 300 + '"a"' + ")" * 300, 'start: "a"*\n%import common.WS\n%ignore WS',
)  # fmt: skip
patterns: Strategy = st.one_of(st.sampled_from(PATTERNS), texts)
grammars: Strategy = st.one_of(st.sampled_from(GRAMMARS), texts)
choices: Strategy = st.lists(often((3, names), (1, texts)), min_size=1, max_size=4)
formats: Strategy = st.one_of(
    st.sampled_from(({"type": "text"}, {"type": "json_object"})),
    st.builds(
        lambda name, schema: {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}},
        names,
        any_schema,
    ),
)
structures: Strategy = st.one_of(
    any_schema.map(lambda schema: {"json": schema}),
    st.just({"json_object": True}),
    patterns.map(lambda pattern: {"regex": pattern}),
    choices.map(lambda choices: {"choice": choices}),
    grammars.map(lambda grammar: {"grammar": grammar}),
)
