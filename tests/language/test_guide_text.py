"""Which of a model's own tokens a guide dictates, in every place of a schema where a text can be given."""

import json

import pytest

from gateway.core import Guide, GuideKind
from gateway.language.guide_text import find_own_token
from tests.language.small_models import Model

MARK = "<tool_call>"
OWN = ("<|end|>", MARK)
TEXT = f"a {MARK}"


def of(schema: object) -> Guide:
    return Guide(GuideKind.JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    "guide",
    [
        of({"const": MARK}),
        of({"enum": ["a", TEXT]}),
        of({"enum": [{"a": [TEXT]}, {TEXT: 1}]}),
        of({"properties": {TEXT: {}}}),
        of({"properties": {"description": {"const": MARK}}}),
        of({"anyOf": [{"items": {"const": MARK}}]}),
        of({"$defs": {"A": {"pattern": f"^{MARK}$"}}}),
        Guide(GuideKind.REGEX, r"(yes|<tool\_call>)"),
        Guide(GuideKind.GRAMMAR, f'root ::= "{MARK}"'),
    ],
)
def test_a_text_that_is_given_is_dictated(guide: Guide) -> None:
    assert find_own_token(guide, OWN) == MARK
    assert find_own_token(guide, OWN[:1]) is None


@pytest.mark.parametrize(
    "guide",
    [
        Guide(GuideKind.JSON),
        of({"type": "string", "title": TEXT, "description": TEXT, "default": TEXT, "examples": [MARK]}),
        of({"$defs": {TEXT: {"type": "integer"}}}),
        of({"enum": ["<tool_", "call>", 5, None]}),
    ],
)
def test_what_is_for_people_is_not_dictated(guide: Guide) -> None:
    assert find_own_token(guide, OWN) is None


def test_a_models_own_tokens_are_its_special_ones_and_those_in_brackets(reference: Model) -> None:
    for own in ("<|im_end|>", MARK):
        assert reference.language.find_own_token(of({"const": own})) == own
    assert reference.language.find_own_token(of({"const": "hello <b>"})) is None
