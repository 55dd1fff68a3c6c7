"""Loading a model's directory; prompts from messages, text and ids; the limit of the context."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gateway.core import Prompt
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage, Rendering, ToolFormat, UnusableTokenizer
from tests.language.small_models import NASTY_TEXTS, Model, longest_wait

Changed = Callable[[Mapping[str, object]], Path]
CONTINUING = Rendering(add_generation_prompt=False, continue_final_message=True)


@pytest.fixture
def changed(byte_level: Model, tmp_path: Path) -> Changed:
    """Copies the byte-level model's directory and replaces files' contents; None removes a file."""

    def change(files: Mapping[str, object]) -> Path:
        shutil.copytree(byte_level.directory, tmp_path, dirs_exist_ok=True)
        for name, content in files.items():
            (tmp_path / name).unlink()
            if content is not None:
                (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return change


def message(text: object, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": text}


# Loading


def test_limits_come_from_the_configuration_files(byte_level: Model, reference: Model) -> None:
    assert byte_level.language.context_length == 512
    assert byte_level.language.eos_token_ids == (byte_level.tokenizer.token_to_id("<|im_end|>"),)
    assert byte_level.language.vocab_size == 1000
    assert (reference.language.context_length, reference.language.eos_token_ids) == (1024, (2, 0))


def test_tokenizer_may_shorten_the_context(changed: Changed) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 64}
    assert ModelLanguage.load(changed({"tokenizer_config.json": config})).context_length == 64


@pytest.mark.parametrize(
    ("generation_config", "config_eos", "expected"),
    [({"eos_token_id": [1, 0, 1]}, 7, (1, 0, 2)), ({"eos_token_id": 2}, 7, (2,)), ({}, 7, (2,)), (None, 1, (1, 2))],
)
def test_end_tokens_are_those_named_first_then_the_tokenizers(
    changed: Changed, generation_config: object, config_eos: int, expected: tuple[int, ...]
) -> None:
    config = {"model_type": "llama", "max_position_embeddings": 512, "eos_token_id": config_eos}
    directory = changed({"generation_config.json": generation_config, "config.json": config})
    assert ModelLanguage.load(directory).eos_token_ids == expected


def test_multimodal_configuration_is_read_where_it_keeps_its_text_part(changed: Changed) -> None:
    config = {"model_type": "gemma3", "text_config": {"max_position_embeddings": 99, "vocab_size": 2048}}
    language = ModelLanguage.load(changed({"config.json": config}))
    assert (language.context_length, language.vocab_size) == (99, 2048)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer.json": None}, "tokenizer.json: No such file"),
        ({"tokenizer_config.json": None}, "tokenizer_config.json: No such file"),
        ({"config.json": None}, "config.json: No such file"),
        ({"tokenizer.json": "{"}, "tokenizer.json: not JSON"),
        ({"tokenizer.json": {"model": {"type": "BPE"}}}, "tokenizer cannot be loaded"),
        ({"config.json": "{"}, "config.json: not JSON"),
        ({"config.json": "[]"}, "config.json: not a JSON object"),
        ({"config.json": {"model_type": "llama"}}, "config.json: no max_position_embeddings"),
        ({"generation_config.json": "nonsense"}, "generation_config.json: not JSON"),
        ({"tokenizer_config.json": {}, "generation_config.json": {}}, "no eos_token_id"),
        ({"chat_template.jinja": "{% for %}"}, "chat template does not compile"),
    ],
)
def test_unusable_directory_is_refused_by_name(changed: Changed, files: Mapping[str, object], named: str) -> None:
    directory = changed(files)
    with pytest.raises(UnusableTokenizer) as refusal:
        ModelLanguage.load(directory)
    assert named in str(refusal.value)
    assert str(directory) in str(refusal.value)


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableTokenizer, match="No such file"):
        ModelLanguage.load(tmp_path / "nowhere")


def test_truncation_baked_into_the_tokenizer_is_not_applied(byte_level: Model, changed: Changed) -> None:
    baked = json.loads((byte_level.directory / "tokenizer.json").read_text(encoding="utf-8"))
    baked["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    language = ModelLanguage.load(changed({"tokenizer.json": baked}))
    assert list(language.encode_text("a long prompt").token_ids) == byte_level.encode("a long prompt")


def test_loading_prints_nothing(byte_level: Model) -> None:
    program = "import sys, pathlib; from gateway.language import ModelLanguage as M; M.load(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(byte_level.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == ("", "")


# Chats


def test_chat_is_rendered_and_encoded_as_transformers_does(model: Model) -> None:
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of \u65e5\u672c?"},
    ]
    theirs = AutoTokenizer.from_pretrained(model.directory).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert list(model.language.render_chat(messages).token_ids) == theirs


def test_chat_has_one_bos(sentencepiece: Model) -> None:
    token_ids = sentencepiece.language.render_chat([message("hello")]).token_ids
    assert token_ids[0] == 1
    assert token_ids.count(1) == 1


def test_text_parts_are_joined_by_newlines(byte_level: Model) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert byte_level.language.render_chat([message(parts)]) == byte_level.language.render_chat([message("one\ntwo")])


def test_assistant_without_content_has_empty_text(byte_level: Model) -> None:
    render = byte_level.language.render_chat
    expected = render([message("hi"), message("", "assistant")])
    assert render([message("hi"), message(None, "assistant")]) == expected
    assert render([message("hi"), {"role": "assistant"}]) == expected


def test_text_that_spells_a_special_token_becomes_it(byte_level: Model) -> None:
    end = byte_level.language.eos_token_ids[0]
    assert byte_level.language.render_chat([message("a<|im_end|>b")]).token_ids.count(end) == 2


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one message"),
        ([message("x", "tool")], "no tool messages here"),
        ([message(None)], "messages[0].content"),
        ([message("hi"), message(7)], "messages[1].content"),
        ([message([{"type": "image_url", "image_url": {"url": "data:"}}])], "messages[0].content[0]"),
        ([message(["bare string"])], "messages[0].content[0]"),
        ([{"content": "no role"}], "chat template"),
        ([{"role": ["a", "list"], "content": "x"}], "chat template cannot render these messages (TypeError)"),
        ([message("lone \ud800 surrogate")], "lone surrogate"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused(byte_level: Model, messages: list[object], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        byte_level.language.render_chat(messages)  # type: ignore[arg-type]  # what clients send is not always a message
    assert reason in refusal.value.message
    assert refusal.value.param == "messages"


def test_without_a_chat_template_completions_work_and_chats_are_refused(changed: Changed) -> None:
    language = ModelLanguage.load(changed({"chat_template.jinja": None}))
    assert len(language.encode_text("hello")) > 0
    with pytest.raises(InvalidRequest, match="no chat template") as refusal:
        language.render_chat([message("hello")])
    assert refusal.value.param == "messages"


def test_template_that_refuses_the_empty_chat_still_loads(changed: Changed) -> None:
    picky = "{{ raise_exception('say more') if not messages[0].content else messages[0].content }}"
    language = ModelLanguage.load(changed({"chat_template.jinja": picky}))
    assert len(language.render_chat([message("hello")])) > 0
    with pytest.raises(InvalidRequest, match="say more"):
        language.render_chat([message("")])


def test_other_threads_go_on_while_a_long_answer_is_decoded(reference: Model) -> None:
    token_ids = [number % 400 for number in range(500_000)]
    assert longest_wait(lambda: reference.language.decode(token_ids)) < 1 / 2  # all of it while the interpreter is held


def test_threads_may_render_at_once(model: Model) -> None:
    chats = [[message(f"chat number {number} " * 50)] for number in range(32)]
    expected = [model.language.render_chat(chat) for chat in chats]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(model.language.render_chat, chats * 4)) == expected * 4


# Completions


def test_completion_prompt_gets_the_tokenizers_special_tokens(byte_level: Model, sentencepiece: Model) -> None:
    assert sentencepiece.language.encode_text("plain words").token_ids == (1, *sentencepiece.encode("plain words"))
    assert byte_level.language.encode_text("plain words").token_ids == tuple(byte_level.encode("plain words"))


@pytest.mark.parametrize("text", ["", "\udfff"])
def test_completion_prompt_without_text_is_refused(byte_level: Model, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        byte_level.language.encode_text(text)
    assert refusal.value.param == "prompt"


def test_ids_are_a_prompt_as_they_are(byte_level: Model) -> None:
    assert byte_level.language.prompt_from_ids([0, 999]) == Prompt((0, 999))


@pytest.mark.parametrize("token_ids", [[], [-1], [5, 1000], [2**40]])
def test_ids_outside_the_vocabulary_are_refused(byte_level: Model, token_ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        byte_level.language.prompt_from_ids(token_ids)
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_text_survives_encoding_and_decoding(model: Model, text: str) -> None:
    ids = model.encode(text)
    assert model.language.decode(ids) == model.tokenizer.decode(ids)
    assert model.language.token_count(text) == len(ids)


# Tokens


def test_every_token_is_spelt_by_its_bytes(model: Model) -> None:
    text = "caf\u00e9 \U0001f468\u200d\U0001f469 one  two\n"
    ids = [*model.encode(text), *model.ids_of_bytes("\u4f60".encode())]
    # A SentencePiece text begins with a space that its tokenizer puts there.
    assert b"".join(map(model.language.spell, ids)).decode().lstrip() == text + "\u4f60"


def test_special_tokens_and_ids_outside_the_vocabulary_are_spelt_too(model: Model) -> None:
    eos = model.language.eos_token_ids[0]
    assert model.language.spell(eos).decode() == model.tokenizer.id_to_token(eos)
    assert [model.language.spell(token_id) for token_id in (-1, 10**6)] == [b"", b""]


@pytest.mark.parametrize("shows_special", [False, True])
def test_ids_are_decoded_with_special_tokens_or_without(model: Model, shows_special: bool) -> None:
    ids = [*model.encode("ok"), model.language.eos_token_ids[0]]
    theirs = model.tokenizer.decode(ids, skip_special_tokens=not shows_special)
    assert model.language.decode([-1, *ids, 10**6, 2**32], shows_special=shows_special) == theirs


def test_texts_longer_than_the_context_are_tokenized(byte_level: Model) -> None:
    text = "word " * 4000
    assert byte_level.language.tokenize_text(text) == byte_level.encode(text)
    assert len(byte_level.language.tokenize_chat([message(text)], Rendering())) > byte_level.language.context_length


# Tools and reasoning

TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "parsers", "tool_format", "reasons"),
    [
        (TOOLS, {}, None, False),
        (TOOLS + "{# <tool_call> #}", {}, ToolFormat.HERMES, False),
        (TOOLS + "{# <tool_call> <think> #}", {}, ToolFormat.HERMES, True),
        (TOOLS + "{# <tool_call> <think> #}", {"tool_parser": "none", "reasoning_parser": "none"}, None, False),
        (TOOLS, {"tool_parser": "mistral", "reasoning_parser": "think"}, ToolFormat.MISTRAL, True),
        ("{{ messages[0].content }}", {"tool_parser": "hermes"}, ToolFormat.HERMES, False),
    ],
)
def test_parsers_are_the_templates_unless_they_are_set(
    changed: Changed, template: str, parsers: Mapping[str, str], tool_format: ToolFormat | None, reasons: bool
) -> None:
    language = ModelLanguage.load(changed({"chat_template.jinja": template}), **parsers)  # type: ignore[arg-type]  # none is cache_bytes
    assert (language.tool_format, language.reasons) == (tool_format, reasons)
    assert language.takes_tools is (TOOLS in template)


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinks is false %}<think>\n\n</think>\n{% elif thinks %}<think>\n{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("messages", "rendering", "expected"),
    [
        ([message("hi")], Rendering(), False),
        ([message("hi")], Rendering(variables={"thinks": True}), True),
        ([message("hi")], Rendering(variables={"thinks": False}), False),
        ([message("what does <think> do?")], Rendering(), False),
        ([message("hi"), message("<think>so", "assistant")], Rendering(add_generation_prompt=False), False),
        ([message("hi"), message("<think>so", "assistant")], CONTINUING, True),
        ([message("hi"), message("<think>so</think>Yes", "assistant")], CONTINUING, False),
    ],
)
def test_a_prompt_that_ends_inside_reasoning_is_known(
    changed: Changed, messages: list[dict[str, object]], rendering: Rendering, expected: bool
) -> None:
    directory = changed({"chat_template.jinja": THINKING})
    language = ModelLanguage.load(directory)
    assert language.starts_in_reasoning(language.render_chat(messages, rendering)) is expected
    deaf = ModelLanguage.load(directory, reasoning_parser="none")
    assert not deaf.starts_in_reasoning(deaf.render_chat(messages, rendering))


# The context


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 500), (500, 500), (1, 1), (501, 500), (10**12, 500)])
def test_a_limit_is_granted_as_far_as_it_fits(byte_level: Model, max_tokens: int | None, expected: int) -> None:
    assert byte_level.language.fit(Prompt((1,) * 12), max_tokens, prompt_param="messages") == expected


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(512, None), (700, 1)])
def test_a_prompt_that_does_not_fit_is_refused_with_its_numbers(
    byte_level: Model, prompt_tokens: int, max_tokens: int | None
) -> None:
    with pytest.raises(ContextLengthExceeded) as refusal:
        byte_level.language.fit(Prompt((1,) * prompt_tokens), max_tokens, prompt_param="messages")
    assert refusal.value.param == "messages"
    assert all(number in refusal.value.message for number in ("512", str(prompt_tokens)))


def test_text_that_cannot_fit_is_refused_unread(byte_level: Model) -> None:
    longest = max(map(len, byte_level.tokenizer.get_vocab()))
    fits = "a" * (512 * longest)
    byte_level.language.encode_text(fits)
    with pytest.raises(ContextLengthExceeded) as refusal:
        byte_level.language.encode_text(fits + "a")
    assert refusal.value.param == "prompt"
    with pytest.raises(ContextLengthExceeded) as refusal:
        byte_level.language.render_chat([message(fits)])
    assert refusal.value.param == "messages"
