"""The faults of guides, as text, without processes and sockets. Guides that would end this process are in tests/api."""

import json

import pytest

from gateway.core import GuideKind
from gateway.language.guide_validator import MAX_CHARACTERS, find_fault

SCHEMA, REGEX, GRAMMAR = GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.GRAMMAR


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"type": "string", "format": "date-time"}}, "required": ["a"]},
        {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
        {"type": "string", "pattern": "^[a-z]{1,99}$", "maxLength": 1_000_000},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},  # pydantic writes it for tagged unions
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"not": {"type": "string"}},
        {"type": "string", "format": "of our house"},
        {"x-guidance": {"lenient": False}, "not": {}},
    ],
    ids=str,
)
def test_a_schema_is_sound_though_the_library_lacks_some_of_its_words(schema: object) -> None:
    assert find_fault(SCHEMA, json.dumps(schema)) == ""


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "#/$defs/nowhere"}, "does not exist"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "does not fetch"),
        ({"$ref": "file:///etc/hostname"}, "does not fetch"),
        ({"properties": []}, "must be an object"),
        ({"items": 3}, "must be an object or boolean"),
        ({"type": "string", "pattern": "(("}, "unclosed group"),
        ({"type": "string", "pattern": "^(?=a)"}, "look-around"),
        ({"type": "string", "minLength": 2, "maxLength": 1}, "Unsatisfiable"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "multipleOf": 0}, "multiple of"),
    ],
    ids=str,
)
def test_a_wrong_schema(schema: object, fault: str) -> None:
    assert fault in find_fault(SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    "pattern", [r"[a-z]{2,5}", "(yes|no)", r"\d+\s\w", "^a$", "(é|日本|😀)+x", "((a{1,999}){1,999})"]
)
def test_a_sound_pattern(pattern: str) -> None:
    assert find_fault(REGEX, pattern) == ""


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("[a", "unclosed character class"),
        ("(?=a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        ("a{2", "unclosed counted repetition"),
        ("(" * 5000 + ")" * 5000, "maximum number of nested"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_pattern(pattern: str, fault: str) -> None:
    assert fault in find_fault(REGEX, pattern)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= ("yes" | "no") "."',
        '# either\nroot ::= "yes" # or\n  | other-one\n  "."\n\n# the other\nother-one ::= "no"',
        'root ::= "a" root | "b"',
        'start: "yes" | other\nother: /[a-z]+/',
    ],
)
def test_a_sound_grammar_may_be_gbnf_over_several_lines_or_lark(grammar: str) -> None:
    assert find_fault(GRAMMAR, grammar) == ""


@pytest.mark.parametrize(
    ("grammar", "fault"),
    [
        ("nonsense", "Expected ::="),
        ('other ::= "a"', "No 'root' rule"),
        ("root ::= nowhere", "'nowhere' not found"),
        ('root ::= "a', "Unexpected end"),
        ("start: nowhere", "unknown name"),
        ("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "recursion"),
        ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "too deeply nested"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_grammar(grammar: str, fault: str) -> None:
    assert fault in find_fault(GRAMMAR, grammar)


def test_a_fault_is_one_short_line_however_long_the_guide_is() -> None:
    fault = find_fault(REGEX, "a" * 5000 + r"\ba")
    assert 0 < len(fault) <= MAX_CHARACTERS
    assert "\n" not in fault
