"""/tokenize and /detokenize as functions of a body and a model's language: no loop, no sockets."""

from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.tokenize import detokenize, tokenize
from tests.language.small_models import Model, build_byte_level, build_sentencepiece
from tests.openai.bodies import USER, chat

TOOLS = [{"type": "function", "function": {"name": "time"}}]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build_sentencepiece(tmp_path_factory.mktemp("sentencepiece"))


def ask(language: ModelLanguage, **fields: object) -> dict[str, object]:
    answer: dict[str, object] = orjson.loads(tokenize({"model": "tiny", **fields}, language))
    return answer


@pytest.mark.parametrize("text", ["Hello there", " a a a\n"])
def test_a_text_is_tokenized_as_it_is(language: ModelLanguage, text: str) -> None:
    ids = list(language.encode_text(text).token_ids)
    expected = {"count": len(ids), "max_model_len": language.context_length, "tokens": ids, "token_strs": None}
    assert ask(language, prompt=text) == expected
    assert ask(language, prompt="")["tokens"] == []


@pytest.mark.parametrize(
    ("fields", "start"), [({"prompt": "Hi <|im_end|>"}, "Hi\u0120<|im_end|>"), ({"messages": [USER]}, "<|im_start|>")]
)
def test_token_strings_are_those_of_the_vocabulary(
    language: ModelLanguage, fields: Mapping[str, object], start: str
) -> None:
    strings = ask(language, **fields, return_token_strs=True)["token_strs"]
    assert isinstance(strings, list)
    assert "".join(strings).startswith(start)


@pytest.mark.parametrize(("fields", "first"), [({}, 1), ({"add_special_tokens": False}, None)])
def test_a_texts_special_tokens_may_be_left_out(
    sentencepiece: Model, fields: Mapping[str, object], first: int | None
) -> None:
    bare = sentencepiece.encode("plain words")
    expected = bare if first is None else [first, *bare]
    assert ask(sentencepiece.language, prompt="plain words", **fields)["tokens"] == expected


def test_a_text_longer_than_the_context_is_counted(language: ModelLanguage) -> None:
    text = "word " * 40_000
    for fields in ({"prompt": text}, {"messages": [{**USER, "content": text}]}):
        count = ask(language, **fields)["count"]
        assert isinstance(count, int)
        assert count > 30_000


def test_null_means_absent_here_too(language: ModelLanguage) -> None:
    nulls = {"messages": None, "return_token_strs": None, "add_special_tokens": None}
    assert ask(language, prompt="Hello", **nulls) == ask(language, prompt="Hello")
    assert ask(language, messages=[USER], prompt=None, tools=None) == ask(language, messages=[USER])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"add_generation_prompt": False},
        {"messages": [USER, {"role": "assistant", "content": "Hello the"}], "continue_final_message": True},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_a_chat_has_the_ids_that_its_completion_has(language: ModelLanguage, fields: Mapping[str, object]) -> None:
    (prompt,) = chat(**fields).prompts(language)
    assert ask(language, **{"messages": [USER], **fields})["tokens"] == list(prompt.token_ids)


def test_a_chats_template_gets_its_variables(tmp_path: Path) -> None:
    model = build_byte_level(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    answer = ask(ModelLanguage.load(model.directory), messages=[USER], chat_template_kwargs={"x": "plain words"})
    assert answer["tokens"] == model.encode("plain words")


def test_a_chats_special_tokens_may_be_added(sentencepiece: Model) -> None:
    bare, framed = (ask(sentencepiece.language, messages=[USER], add_special_tokens=adds) for adds in (False, True))
    assert framed["tokens"] == [1, *bare["tokens"]]  # type: ignore[misc]  # a list, as the tests above show
    assert ask(sentencepiece.language, messages=[USER]) == bare


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "Missing"),
        ({"prompt": [1]}, "prompt", "valid string"),
        ({"prompt": "x", "temperature": 1}, "temperature", "Unrecognized"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages.0.content.0.type", "'file'"),
        ({"messages": [USER], "chat_template": "x"}, "chat_template", "not supported"),
        ({"messages": [USER], "prompt": "x"}, "prompt", "not supported"),
    ],
)
def test_a_bad_body_is_named(language: ModelLanguage, fields: Mapping[str, object], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(language, **fields)
    assert (caught.value.param, words in caught.value.message) == (param, True), caught.value.message


def test_ids_become_text_with_their_special_tokens(language: ModelLanguage) -> None:
    ids = language.encode_text("Hello<|im_end|>").token_ids
    answer = detokenize({"model": "tiny", "tokens": [*ids, 999_999]}, language)
    assert orjson.loads(answer) == {"prompt": "Hello<|im_end|>"}
    assert orjson.loads(detokenize({"model": "tiny", "tokens": []}, language)) == {"prompt": ""}


@pytest.mark.parametrize(
    ("tokens", "param"), [([-1], "tokens.0"), (["a"], "tokens.0"), ("a", "tokens"), (None, "tokens")]
)
def test_bad_ids_are_named(language: ModelLanguage, tokens: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        detokenize({"model": "tiny", "tokens": tokens}, language)
    assert caught.value.param == param
