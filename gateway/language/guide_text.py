"""The texts that a guide dictates, and which of a model's own tokens one of them spells. Pure.

Libraries of guides tokenize a dictated text. Where it spells a token of the model's own, such as `<tool_call>`,
llguidance (1.7, vLLM's `guidance`) allows that token alone and then refuses it: the answer ends there as if it were
complete, or the engine fails.
"""

import json
from collections.abc import Collection, Iterator

from gateway.core import Guide, GuideKind
from gateway.language.schema import BY_NAME

# Keys of a JSON schema: whose values are given texts; under which names are not part of a text; which are for people.
GIVEN = frozenset({"const", "enum", "pattern"})
UNSAID_NAMES = frozenset({"$defs", "definitions"})
FOR_PEOPLE = frozenset({"title", "description", "default", "examples", "$comment"})


def find_own_token(guide: Guide, tokens: Collection[str]) -> str | None:
    """Returns the first of `tokens`, given by their texts, that the guide dictates; None if there is none."""
    text = "\0".join(_dictated(guide))  # which no token holds
    return next((token for token in tokens if token in text), None)


def _dictated(guide: Guide) -> Iterator[str]:
    if guide.kind is GuideKind.JSON_SCHEMA:
        yield from _given(json.loads(guide.text))
    else:
        yield guide.text.replace("\\", "")  # a regular expression may escape any character


def _given(schema: object) -> Iterator[str]:
    if isinstance(schema, list):
        for below in schema:
            yield from _given(below)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            yield from _given_by(key, value)


def _given_by(key: str, value: object) -> Iterator[str]:
    if key in GIVEN:
        yield from _strings(value)
    elif key in BY_NAME and isinstance(value, dict):
        yield from () if key in UNSAID_NAMES else value
        yield from _given(list(value.values()))
    elif key not in FOR_PEOPLE:
        yield from _given(value)


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for below in value:
                yield from _strings(below)
        case dict():
            yield from value
            yield from _strings(list(value.values()))
