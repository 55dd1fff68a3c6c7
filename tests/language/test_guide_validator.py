"""The faults of guides, as text, without processes and sockets. Guides that would end this process are in tests/api."""

import json

import pytest

from gateway.core import GuideKind
from gateway.language.guide_validator import MAX_CHARACTERS, find_fault

SCHEMA, REGEX, GRAMMAR = GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.GRAMMAR


def fault_of(kind: GuideKind, guide: object) -> str:
    return find_fault(kind, guide if isinstance(guide, str) else json.dumps(guide))


@pytest.mark.parametrize(
    ("kind", "guide"),
    [
        # Schemas, though the library lacks some of their words.
        (SCHEMA, {}),
        (SCHEMA, {"type": "object", "properties": {"a": {"type": "string", "format": "date-time"}}, "required": ["a"]}),
        (SCHEMA, {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}),
        (SCHEMA, {"type": "string", "pattern": "^[a-z]{1,99}$", "maxLength": 1_000_000}),
        (SCHEMA, {"oneOf": [{"type": "integer"}, {"type": "string"}]}),  # pydantic writes it for tagged unions
        (SCHEMA, {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (SCHEMA, {"not": {"type": "string"}}),
        (SCHEMA, {"type": "string", "format": "of our house"}),
        (SCHEMA, {"x-guidance": {"lenient": False}, "not": {}}),
        *(
            (REGEX, text)
            for text in (r"[a-z]{2,5}", "(yes|no)", r"\d+\s\w", "^a$", "(é|日本|😀)+x", "((a{1,999}){1,999})")
        ),
        # Grammars, in GBNF over several lines or in Lark.
        (GRAMMAR, 'root ::= ("yes" | "no") "."'),
        (GRAMMAR, '# either\nroot ::= "yes" # or\n  | other-one\n  "."\n\n# the other\nother-one ::= "no"'),
        (GRAMMAR, 'root ::= "a" root | "b"'),
        (GRAMMAR, 'start: "yes" | other\nother: /[a-z]+/'),
    ],
    ids=str,
)
def test_a_sound_guide(kind: GuideKind, guide: object) -> None:
    assert fault_of(kind, guide) == ""


@pytest.mark.parametrize(
    ("kind", "guide", "fault"),
    [
        (SCHEMA, {"type": "strin"}, "Invalid type: strin"),
        (SCHEMA, {"$ref": "#/$defs/nowhere"}, "does not exist"),
        (SCHEMA, {"$ref": "http://127.0.0.1:1/schema.json"}, "does not fetch"),
        (SCHEMA, {"$ref": "file:///etc/hostname"}, "does not fetch"),
        (SCHEMA, {"properties": []}, "must be an object"),
        (SCHEMA, {"items": 3}, "must be an object or boolean"),
        (SCHEMA, {"type": "string", "pattern": "(("}, "unclosed group"),
        (SCHEMA, {"type": "string", "pattern": "^(?=a)"}, "look-around"),
        (SCHEMA, {"type": "string", "minLength": 2, "maxLength": 1}, "Unsatisfiable"),
        (SCHEMA, {"enum": []}, "Unsatisfiable"),
        (SCHEMA, {"type": "integer", "multipleOf": 0}, "multiple of"),
        (REGEX, "[a", "unclosed character class"),
        (REGEX, "(?=a)b", "look-around"),
        (REGEX, r"(a)\1", "backreferences"),
        (REGEX, "a{2", "unclosed counted repetition"),
        (REGEX, "(" * 5000 + ")" * 5000, "maximum number of nested"),
        (GRAMMAR, "nonsense", "Expected ::="),
        (GRAMMAR, 'other ::= "a"', "No 'root' rule"),
        (GRAMMAR, "root ::= nowhere", "'nowhere' not found"),
        (GRAMMAR, 'root ::= "a', "Unexpected end"),
        (GRAMMAR, "start: nowhere", "unknown name"),
        (GRAMMAR, "root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "recursion"),
        (GRAMMAR, "start: " + "(" * 3000 + '"a"' + ")" * 3000, "too deeply nested"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_guide(kind: GuideKind, guide: object, fault: str) -> None:
    assert fault in fault_of(kind, guide)


def test_a_fault_is_one_short_line_however_long_the_guide_is() -> None:
    fault = find_fault(REGEX, "a" * 5000 + r"\ba")
    assert 0 < len(fault) <= MAX_CHARACTERS
    assert "\n" not in fault
