"""Grammars of the trained model's tokenizer as tables: which texts pass a guide, and where an answer may end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engines.reference.guide import Grammars, Guide, Walk

WEIGHTS = Path(__file__).parents[2] / "engines/reference/weights"
VOCABULARY, END, OTHER_END = 1024, 2, 0
PERSON = json.dumps({
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
})
GBNF = 'root ::= "yes" | "no" tail\ntail ::= "!"+'
LARK = 'start: "yes" | "no" tail\ntail: "!"+'


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(WEIGHTS, VOCABULARY)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


def allowed(walk: Walk) -> set[int]:
    logits = np.zeros(VOCABULARY, np.float32)
    walk.mask(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def taken(walk: Walk, token_ids: list[int]) -> int:
    """How many of the tokens it lets through, one after the other."""
    for position, token_id in enumerate(token_ids):
        if token_id not in allowed(walk):
            return position
        walk.accept(token_id)
    return len(token_ids)


@pytest.mark.parametrize(
    ("guide", "text"),
    [
        (Guide("json"), '{"a": [1, 2.5e3, null], "b": {"c": "d\\n"}}'),
        (Guide("json_schema", PERSON), '{"name": "Ann", "age": 7}'),
        (Guide("json_schema", PERSON), '{\n  "name": "Zoë",\n  "age": 41\n}'),
        (Guide("json_schema", '{"type": "array", "items": {"enum": ["a", "b"]}}'), '["a", "b", "b"]'),
        (Guide("regex", r"\d{3}-[a-z]+"), "123-abc"),
        (Guide("ebnf_grammar", GBNF), "no!!!"),
        (Guide("ebnf_grammar", LARK), "no!!!"),
        (Guide("choice", '["Paris", "Rome \\"it\\""]'), 'Rome "it"'),
    ],
    ids=str,
)
def test_a_text_that_matches_passes_and_may_end_there_and_not_before(
    grammars: Grammars, tokenizer: Tokenizer, guide: Guide, text: str
) -> None:
    walk, ids = grammars.walk(guide), tokenizer.encode(text).ids
    assert taken(walk, ids[:-1]) == len(ids) - 1
    is_open = {"no!!!", "123-abc"}  # these may have ended a token earlier
    assert (END in allowed(walk)) == (text in is_open and not text.endswith("-"))
    assert taken(walk, ids[-1:]) == 1
    assert END in allowed(walk)


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (Guide("json_schema", PERSON), '{"name": "Ann", "age": ', '"7"'),
        (Guide("regex", r"\d{3}-[a-z]+"), "123", "4"),
        (Guide("ebnf_grammar", GBNF), "", "maybe"),
        (Guide("choice", '["Paris", "Rome"]'), "", "London"),
    ],
    ids=str,
)
def test_a_text_that_does_not_match_stops_where_it_departs(
    grammars: Grammars, tokenizer: Tokenizer, guide: Guide, good: str, bad: str
) -> None:
    walk, ids = grammars.walk(guide), tokenizer.encode(good).ids
    assert taken(walk, ids) == len(ids)
    wrong = tokenizer.encode(bad).ids
    assert taken(walk, wrong) < len(wrong)


def test_special_tokens_are_never_text_and_only_the_tokenizers_end_token_ends(grammars: Grammars) -> None:
    walk = grammars.walk(Guide("regex", ".*"))
    may = allowed(walk)
    assert END in may
    assert not may & {OTHER_END, 1}


def test_once_ended_everything_is_allowed_as_in_vllm(grammars: Grammars) -> None:
    walk = grammars.walk(Guide("regex", "a?"))
    walk.accept(END)
    assert allowed(walk) == set(range(VOCABULARY))
    walk.accept(77)
    assert allowed(walk) == set(range(VOCABULARY))


def test_ids_beyond_the_tokenizer_are_masked() -> None:
    """A model's embedding may be padded past its tokenizer's last token."""
    walk = Grammars(WEIGHTS, VOCABULARY + 24).walk(Guide("regex", ".*"))
    logits = np.zeros(VOCABULARY + 24, np.float32)
    walk.mask(logits)
    assert (logits[VOCABULARY:] == -np.inf).all()


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Guide("json_schema", '{"type": "objekt"}'), "Grammar error: "),
        (Guide("json_schema", "{"), "Invalid grammar specification: "),
        (Guide("json_schema", '{"type": "array", "unevaluatedItems": {"type": "string"}}'), "Grammar error: "),
        (Guide("regex", "(a"), "Grammar error: "),
        (Guide("ebnf_grammar", "root ::= ("), "Invalid grammar specification: "),
        (Guide("ebnf_grammar", "start: missing"), "Grammar error: "),
        (Guide("choice", "["), "Invalid grammar specification: "),
    ],
    ids=str,
)
def test_what_is_no_grammar_is_refused_in_vllms_words(grammars: Grammars, guide: Guide, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        grammars.walk(guide)


def test_without_a_tokenizer_every_guide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no guide can be followed without .*tokenizer\.json"):
        Grammars(tmp_path, VOCABULARY).walk(Guide("json"))


def test_an_added_token_object_may_name_the_end(tmp_path: Path) -> None:
    """transformers 4 wrote tokenizer_config.json's end token as an object."""
    (tmp_path / "tokenizer.json").write_bytes((WEIGHTS / "tokenizer.json").read_bytes())
    config: dict[str, Any] = {"eos_token": {"content": "<|endoftext|>", "special": True}}  # any JSON
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert allowed(Grammars(tmp_path, VOCABULARY).walk(Guide("regex", ""))) == {OTHER_END}
