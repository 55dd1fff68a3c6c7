"""Answers that must have a form: JSON, a schema, a pattern, one of several, a grammar."""

from tests.parity.case import Case, Refused, Same, Sampled, chat, drawn_greedily, not_in_vllm, text, turn
from tests.reference_world import CITY_SCHEMA

ASKED = "Give me France and its capital as JSON."
CITY = Same('{"country": "France", "capital": "Paris"}', "stop")
NESTED = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/City"},
        "size": {"enum": ["small", "big"]},
        "ranks": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        "seen": {"type": "boolean"},
    },
    "required": ["city", "size", "ranks", "seen"],
    "additionalProperties": False,
    "$defs": {
        "City": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
AS_PATHS = CITY_SCHEMA | {"properties": {key: {"type": "string", "format": "path"} for key in ("country", "capital")}}
SET = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
DATE = r"\d{4}-\d{2}-\d{2}"
GRAMMAR = 'root ::= ("yes" | "no") "."'
ROOM = 64


def schema(of: object, **more: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": of, **more}}


CASES: tuple[Case, ...] = (
    chat("format: text", "hi", Same("Hello! How can I help you?", "stop"), response_format={"type": "text"}),
    chat("format: any object", ASKED, CITY, response_format={"type": "json_object"}, max_tokens=ROOM),
    chat("format: a schema", ASKED, CITY, response_format=schema(CITY_SCHEMA), max_tokens=ROOM),
    chat(
        "format: a schema that is described",
        ASKED,
        CITY,
        response_format=schema(CITY_SCHEMA, strict=False, description="A country and its capital."),
        max_tokens=ROOM,
    ),
    not_in_vllm(
        "Unknown format",
        chat("format: one that binds nothing", ASKED, CITY, response_format=schema(AS_PATHS), max_tokens=ROOM),
    ),
    chat("format: a nested schema", ASKED, response_format=schema(NESTED), max_tokens=120),
    chat("refused: a format, a set", ASKED, Refused("response_format"), response_format=schema(SET)),
    chat(
        "refused: a guide, a token of the model's own",
        ASKED,
        Refused("structured_outputs"),
        structured_outputs={"choice": ["<tool_call>", "no"]},
    ),
    chat("format: cut off", ASKED, Same(None, "length"), response_format=schema(CITY_SCHEMA), max_tokens=6),
    drawn_greedily(
        chat("format: in every choice", ASKED, CITY, response_format=schema(CITY_SCHEMA), max_tokens=ROOM, n=2)
    ),
    chat(
        "format: a schema, sampled",
        ASKED,
        Sampled(is_seeded=True),
        response_format=schema({"enum": ["red"]}),
        temperature=1.0,
        seed=5,
        max_tokens=ROOM,
    ),
    text("format of a completion", turn(ASKED), CITY, response_format=schema(CITY_SCHEMA), max_tokens=ROOM),
    chat("guide: json", ASKED, CITY, structured_outputs={"json": CITY_SCHEMA}, max_tokens=ROOM),
    chat("guide: a pattern", "What is the date?", structured_outputs={"regex": DATE}),
    chat("guide: a pattern with Unicode", "hi", structured_outputs={"regex": "(é|日本|😀)+x"}),
    chat("guide: a choice", "What is the capital of France?", structured_outputs={"choice": ["Rome", "Oslo", "Paris"]}),
    chat("guide: a grammar", "Is Paris the capital of France?", structured_outputs={"grammar": GRAMMAR}),
    text("guide of a completion", turn("hi"), structured_outputs={"regex": "[a-c]{5}"}),
)
